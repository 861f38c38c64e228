"""A real kernel in the lab, opened by its file's content: a stock kernel, unbooted, or a memory image of a machine.

``with open_kernel("/boot/vmlinuz") as kernel:`` has the lab's verbs: ``prog``, ``load``, ``open``, ``attach``,
``detach``, ``call``, ``close``. All of them run the kernel's own code; docs/own-kernel.md says what of it is replaced.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emu.vmlinux.attachments import Attachment
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.dump_calls import NoUserMemory
from emu.vmlinux.elf_core import ELF_MAGIC, XZ_MAGIC
from emu.vmlinux.errors import ImageError, NoConfiguration
from emu.vmlinux.ftrace_records import ftrace_records
from emu.vmlinux.kdump import FLATTENED_MAGIC, KDUMP_MAGIC
from emu.vmlinux.kernel_image import KernelImage, kernel_file
from emu.vmlinux.memory_image import MemoryImage
from emu.vmlinux.run import ENDBR
from emu.vmlinux.unbooted_kernel import UnbootedKernel
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.objects.section_names import section_kind, target_prefix
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.uapi import AttachType
from trampoline.lab.kernel_object import KernelLink, KernelLoader, KernelObject, KernelProgram

if TYPE_CHECKING:
    from emu.vmlinux.btf_layout import BtfLayout
    from emu.vmlinux.kallsyms import Kallsyms
    from emu.vmlinux.page_walk import PageTables
    from emu.vmlinux.run import Run
    from emu.vmlinux.system_calls import SystemCalls

__all__ = ["OwnKernel", "open_kernel"]

Argument = int | str | bytes
"""A number; "current" (the task); "zero:N" (N zeroed bytes on its stack); other text or bytes (a copy there)."""

_ET_CORE = 4
_ZERO = re.compile(r"zero:(\d+)")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_DEBIAN = re.compile(r"Debian (\d+)\.(\d+)\.(\d+)")
"""Debian's packages say in the banner from which version they are made; ``uname -r`` does not."""
_RETURN_0 = "r0 = 0\nexit"
_CONFIG_DATA = "kernel_config_data"


class OwnKernel(ABC):
    """A kernel that is open. Raises ``VmlinuxError`` for what it can't do, ``Refused`` for what it refuses."""

    path: str
    is_memory_image: bool

    @property
    @abstractmethod
    def release(self) -> str:
        """``uname -r``."""

    @property
    @abstractmethod
    def layout(self) -> BtfLayout:
        """Its types."""

    @property
    @abstractmethod
    def symbols(self) -> Kallsyms:
        """Its symbols."""

    @property
    @abstractmethod
    def memory(self) -> PageTables:
        """Its memory by guest addresses."""

    @property
    @abstractmethod
    def code(self) -> CodeNames:
        """Names of its code, generated code included."""

    @property
    @abstractmethod
    def calls(self) -> SystemCalls:
        """Its system calls. Raises NoUserMemory, LockHeld for memory images in which none can be made."""

    @cached_property
    def btf(self) -> Btf:
        """Its types as objects are resolved against."""
        return Btf(self.layout.raw)

    @property
    @abstractmethod
    def configuration(self) -> dict[str, str]:
        """``CONFIG_*`` to value. Raises NoConfiguration."""

    def kconfig(self) -> dict[str, int | str]:
        """Values for an object's ``.kconfig`` variables; without a configuration the version alone."""
        banner = self.memory.text(self.symbols["linux_banner"]) if "linux_banner" in self.symbols else ""
        # The compiler's version comes first in it, in the same form.
        found = [*_VERSION.findall(self.release)[:1], *_DEBIAN.findall(banner)]
        major, minor, patch = (int(part or 0) for part in found[-1]) if found else (0, 0, 0)
        known: dict[str, int | str] = {"LINUX_KERNEL_VERSION": major << 16 | minor << 8 | min(patch, 255)}
        try:
            configuration = self.configuration
        except NoConfiguration:
            return known
        for name, value in configuration.items():
            known[name] = value.strip('"') if value[:1] == '"' or value in "ymn" else int(value, 0)
        return known

    @cached_property
    def traceable(self) -> dict[str, int]:
        """Functions that ftrace can patch: name to address. NoSymbol, MissingPage."""
        sites = ftrace_records(self.memory, self.symbols, self.layout)
        known: dict[str, int] = {}
        for name, address in self.symbols.functions():
            if address in sites or (address + 4 in sites and self.memory.read(address, 4) in ENDBR):
                known.setdefault(name, address)
        return known

    # Programs -------------------------------------------------------------------------------------------------------

    @cached_property
    def loader(self) -> KernelLoader:
        """Loads and attaches here."""
        return KernelLoader(self)

    def prog(self, section: str, code: str = _RETURN_0, *, license: str = "GPL", name: str = "p") -> KernelProgram:
        """Load a program of eBPF text; ``section`` says type and target as in an object: ``fentry/vfs_read``.

        ObjectError, BytecodeSyntaxError, NoSymbol, Refused.
        """
        kind = section_kind(section)
        return self.load(
            BpfProgram(
                name=name,
                insns=parse(code),
                prog_type=kind.prog_type,
                attach=kind.attach,
                license=license,
                flags=int(kind.flags),
                attach_btf_id=self._target_id(kind.attach, kind.target),
                section=section,
                target=kind.target,
            )
        )

    def _target_id(self, attach: AttachType, target: str) -> int:
        prefix = target_prefix(attach)
        if prefix is None or not target:
            return 0
        name = prefix + target
        found = self.layout.typedef(name) if attach is AttachType.TRACE_RAW_TP else self.layout.function(name)
        return found or 0

    def load(self, program: BpfProgram) -> KernelProgram:
        """Verify and compile a program by BPF_PROG_LOAD. Refused, with the verifier's log."""
        return self.loader.load(program)

    def open(
        self,
        source: str | PathLike[str] | BpfObject,
        names: Collection[str] | None = None,
        *,
        targets: Mapping[str, str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> KernelObject:
        """Load clang's object: CO-RE against this kernel's BTF, its maps, BTF, func_info. ObjectError, Refused.

        ``names``: programs (by default those with autoload), ``targets``: other functions than the sections', by
        program, ``data``: first values of global variables.
        """
        obj = source if isinstance(source, BpfObject) else BpfObject.open(source)
        return self.loader.open(obj, names, targets=targets, data=data)

    def attach(self, program: KernelProgram, where: str | None = None, cookie: int = 0) -> KernelLink:
        """Attach to what the program's section says, or to ``where``. Refused, TrampolineError."""
        return self.loader.attach(program, where, cookie)

    def detach(self, link: KernelLink) -> None:
        """Close a link (and its perf event) and let grace periods end."""
        for fd in (link.fd, link.event_fd):
            if fd >= 0:
                self.close_descriptor(fd)

    @abstractmethod
    def close_descriptor(self, fd: int) -> None:
        """Close a descriptor; what the kernel puts off runs."""

    # Calls ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def call(self, function: str, *arguments: Argument, warm: bool = False) -> Run:
        """Call a function; calls follow each other. ``warm``: made twice, and the second counts."""

    def value(self, function: str, run: Run) -> int:
        """A call's result, unsigned, as wide as the function's result (all of rax where BTF knows none)."""
        size = self.layout.return_bytes(function) or 8
        return run.rax & (1 << 8 * size) - 1

    @abstractmethod
    def trial(self) -> AbstractContextManager[object]:
        """A block after which everything is as it was before, however it ends, a death of the kernel included."""

    def attachments(self) -> list[Attachment]:
        """Attachments in a memory image; empty for an unbooted kernel, whose only ones were made here."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Give engines and files back."""

    def __enter__(self) -> OwnKernel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StockKernel(OwnKernel):
    """A kernel's file, initialised by its own functions. ``unbooted`` is the kernel below."""

    is_memory_image = False

    def __init__(self, path: str, unbooted: UnbootedKernel) -> None:
        self.path, self.unbooted = path, unbooted

    @property
    def release(self) -> str:
        return self.unbooted.release

    @property
    def layout(self) -> BtfLayout:
        return self.unbooted.machine.layout

    @property
    def symbols(self) -> Kallsyms:
        return self.unbooted.machine.symbols

    @property
    def memory(self) -> PageTables:
        return self.unbooted.machine.memory

    @property
    def code(self) -> CodeNames:
        return self.unbooted.machine.names

    @property
    def calls(self) -> SystemCalls:
        return self.unbooted.calls

    @cached_property
    def configuration(self) -> dict[str, str]:
        return KernelImage.open(self.path).configuration

    def close_descriptor(self, fd: int) -> None:
        self.unbooted.calls.close(fd)
        self.unbooted.drain()

    def call(self, function: str, *arguments: Argument, warm: bool = False) -> Run:
        machine = self.unbooted.machine
        task = machine.memory.u64(machine.percpu_field("current_task", "current_task"))
        values = [task if one == "current" else _on_stack(one) if isinstance(one, str) else one for one in arguments]
        if warm:
            self.unbooted.call(function, *values, count=False)
        return self.unbooted.call(function, *values)

    def trial(self) -> AbstractContextManager[object]:
        return self.unbooted.trial()

    def close(self) -> None:
        self.unbooted.close()


class ImagedKernel(OwnKernel):
    """The kernel of ``image``; system calls make its first process current where a kernel thread is."""

    is_memory_image = True

    def __init__(self, path: str, image: MemoryImage) -> None:
        self.path, self.image = path, image

    @property
    def release(self) -> str:
        return self.image.kernel.release

    @property
    def layout(self) -> BtfLayout:
        return self.image.kernel.layout

    @property
    def symbols(self) -> Kallsyms:
        return self.image.kernel.symbols

    @property
    def memory(self) -> PageTables:
        return self.image.memory

    @property
    def code(self) -> CodeNames:
        return self.image.kernel.code

    @cached_property
    def calls(self) -> SystemCalls:
        offset = self.layout.offset("task_struct", "mm")
        if not self.memory.u64(self.image.current + offset):
            process = next((one for one in self.image.kernel.tasks() if self.memory.u64(one.address + offset)), None)
            if process is None:
                raise NoUserMemory("the image has no process whose memory could take arguments")
            self.image.become(process.pid)
        return self.image.system_calls()

    @cached_property
    def configuration(self) -> dict[str, str]:
        start, end = self.symbols.get(_CONFIG_DATA), self.symbols.get(f"{_CONFIG_DATA}_end")
        if start is None or end is None:
            raise NoConfiguration(f"{self.path}: no IKCONFIG in this kernel")
        content = b"IKCFG_ST" + self.memory.read(start, end - start) + b"IKCFG_ED"
        return KernelImage.configuration_in(content, None, self.path)

    def close_descriptor(self, fd: int) -> None:
        self.calls.close(fd)
        self.image.machine.call(self.symbols["task_work_run"], (), self.image.call_stack, count=False)

    def attach(self, program: KernelProgram, where: str | None = None, cookie: int = 0) -> KernelLink:
        link = super().attach(program, where, cookie)
        self.image.find_code()
        return link

    def call(self, function: str, *arguments: Argument, warm: bool = False) -> Run:
        return self.image.call(function, *arguments, fresh=False, warm=warm)

    @contextmanager
    def trial(self) -> Iterator[object]:
        _ = self.calls  # a task may have to be made current for them, for good
        before = self.image.checkpoint()
        try:
            yield self
        finally:
            self.image.restore(before)

    def attachments(self) -> list[Attachment]:
        return self.image.attachments()

    def close(self) -> None:
        self.image.close()


def open_kernel(
    path: str | PathLike[str],
    *,
    cpu: int = 0,
    task: int | str | None = None,
    cache: Path | bool | None = True,
    progress: Callable[[str, float], None] = lambda step, seconds: None,
) -> OwnKernel:
    """Open a ``vmlinuz``, ``vmlinux`` or unpacked package, or a memory image (ELF core, ``.xz`` too, kdump).

    ``cpu`` and ``task`` (pid or name) are of a memory image: the CPU whose state is taken, the task made current.
    ``cache`` and ``progress`` as ``UnbootedKernel.open`` has them. Raises ``ImageError``, ``DumpError`` and their like
    below ``VmlinuxError`` for files that can't be run, OSError.
    """
    file = kernel_file(Path(path))
    if _is_memory_image(file):
        image = MemoryImage(file, cpu=cpu)
        if task is not None:
            image.become(task)
        return ImagedKernel(str(file), image)
    if cpu or task is not None:
        raise ImageError(f"{file}: a CPU and a task are chosen in memory images; this is a kernel's file")
    return StockKernel(str(file), UnbootedKernel.open(file, cache=cache, progress=progress))


def _is_memory_image(file: Path) -> bool:
    with file.open("rb") as content:
        start = content.read(18)
    if start.startswith(ELF_MAGIC):
        return int.from_bytes(start[16:18], "little") == _ET_CORE
    return start.startswith((XZ_MAGIC, KDUMP_MAGIC, FLATTENED_MAGIC))


def _on_stack(argument: str) -> bytes:
    zero = _ZERO.fullmatch(argument)
    return bytes(int(zero[1])) if zero else argument.encode() + b"\0"
