"""A stock kernel file as a laboratory: initialised by its own functions, BPF by its own system calls.

Its lowest layer is the floor's (``emu.vmlinux.floor``): docs/own-kernel.md says what that cannot show.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emu.vmlinux import prepared_state
from emu.vmlinux.boot import boot
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.cpu_model import PLAIN, CpuModel
from emu.vmlinux.errors import NoSymbol, VmlinuxError
from emu.vmlinux.floor.memory import live_objects, release
from emu.vmlinux.kernel_image import KernelImage, kernel_file
from emu.vmlinux.system_calls import AttachType, ProgType, Refused, SystemCalls, Verdict
from emu.vmlinux.unbooted_machine import UnbootedMachine

if TYPE_CHECKING:
    from emu.vmlinux.run import Run

__all__ = ["Checkpoint", "Link", "Program", "UnbootedKernel"]

_WORK_PENDING = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program: its descriptor, types, the function it was loaded for ("" without), the verifier's log."""

    fd: int
    kind: int
    attach_type: int
    function: str
    log: str


@dataclass(frozen=True, slots=True)
class Link:
    """An attached program: the link's descriptor, and that of the perf event below it (-1 without)."""

    fd: int
    event_fd: int = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state to go back to: changed pages of memory, and what the host keeps beside it."""

    pages: dict[int, bytes]
    log: int
    inode: int


class UnbootedKernel:
    """One kernel, made by :meth:`open`. After a call that does not return only :meth:`restore` helps."""

    def __init__(self, machine: UnbootedMachine, results: dict[str, int | str], release: str) -> None:
        self.machine = machine
        self.results = results
        """What each initcall and late step returned, or how it ended."""
        self.release = release
        self.calls = SystemCalls(machine)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        cpus: int = 1,
        cpu: CpuModel = PLAIN,
        command_line: str = "",
        cache: Path | bool | None = True,
        progress: Callable[[str, float], None] = lambda step, seconds: None,
    ) -> UnbootedKernel:
        """Open a ``vmlinuz``, ``vmlinux`` or unpacked package.

        ``cpu`` decides on alternatives and mitigations, ``command_line`` are early parameters. The state is kept in
        ``cache`` (True: the user's cache folder; False or None: nowhere) and taken from there the next time. Raises
        :class:`ImageError`, :class:`NoKallsyms`, :class:`NoBtf`, :class:`NoSymbol` for files that can't be run.
        """
        file = kernel_file(Path(path))
        folder = prepared_state.default_folder() if cache is True else cache or None
        with _no_collection():
            if folder is not None:
                place = prepared_state.place_of(file, folder, cpus, f"{cpu!r} {command_line}")
                prepared = prepared_state.load(place, cpus)
                if prepared is not None:
                    return cls(*prepared)
            image = KernelImage.open(file)
            machine = UnbootedMachine(image.kallsyms, BtfLayout(image.btf), cpus=cpus)
            machine.load(image)
            kernel = cls(machine, boot(machine, cpu, command_line, progress), image.release)
            kernel.drain()
            if folder is not None:
                prepared_state.store(place, machine, kernel.results, image.release)
            return kernel

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, function: str, *arguments: int | bytes, cpu: int = 0, count: bool = True) -> Run:
        """Call a function; by default every instruction is noted, by function in order (``Run.by_function``).

        Bytes are passed as the address of a copy on the stack.
        """
        if count:
            self.machine.update_names()
        return self.machine.run(function, *arguments, cpu=cpu, count=count)

    def address(self, function: str) -> int:
        """Guest address of a symbol. Raises :class:`NoSymbol`."""
        return self.machine.symbols[function]

    def site(self, function: str, size: int = 16) -> bytes:
        """The first bytes of a function as they are now."""
        return self.machine.memory.read(self.address(function), size)

    def drain(self, most: int = 100_000) -> int:
        """Let grace periods end: callbacks, work items and last references' releases run, oldest first.

        Gives how many ran. Raises :class:`VmlinuxError` while the current task is inside an RCU read-side section, and
        when more than ``most`` come (work that queues itself).
        """
        machine, memory, layout = self.machine, self.machine.memory, self.machine.layout
        if machine.deferred and layout.has("task_struct", "rcu_read_lock_nesting"):
            for cpu in range(len(machine.cpus)):
                task = memory.u64(machine.percpu_field("current_task", "current_task", cpu))
                if memory.u32(task + layout.offset("task_struct", "rcu_read_lock_nesting")):
                    raise VmlinuxError(f"no grace period can end: CPU {cpu} is inside an RCU read-side section")
        ran = 0
        while machine.deferred:
            entry = machine.deferred.popleft()
            ran += 1
            if ran > most:
                raise VmlinuxError(f"more than {most} deferred calls: {entry.kind} comes again and again")
            match entry.kind:
                case "work":
                    at = entry.argument
                    memory.write_u64(at, memory.u64(at) & ~_WORK_PENDING)
                    machine.call(memory.u64(at + layout.offset("work_struct", "func")), at)
                case "irq_work":
                    machine.call(memory.u64(entry.argument + layout.offset("irq_work", "func")), entry.argument)
                case "fput":
                    self._release_file(entry.argument)
                case _:
                    machine.call(entry.function, entry.argument)
        return ran

    def _release_file(self, file: int) -> None:
        memory, layout = self.machine.memory, self.machine.layout
        operations = memory.u64(file + layout.offset("file", "f_op"))
        function = memory.u64(operations + layout.offset("file_operations", "release"))
        if function:
            self.machine.call(function, memory.u64(file + layout.offset("file", "f_inode")), file)
        release(self.machine, file)

    # Programs and links ---------------------------------------------------------------------------------------------

    def verify(
        self, instructions: bytes, kind: int, attach_type: int = 0, function: str = "", **options: object
    ) -> Verdict:
        """The kernel's verdict with its log; a program that was taken is closed again. Options as ``load`` has them."""
        verdict = self._load(instructions, kind, attach_type, function, {"log_level": 2, **options})
        if verdict.is_loaded:
            self.calls.close(verdict.fd)
            self.drain()
        return verdict

    def load(
        self, instructions: bytes, kind: int, attach_type: int = 0, function: str = "", **options: object
    ) -> Program:
        """Verify and compile a program; ``function`` is what it is to be attached to (``attach_btf_id``).

        Options are those of :meth:`SystemCalls.load_program`. Raises :class:`Refused` with the verifier's log.
        """
        verdict = self._load(instructions, kind, attach_type, function, options)
        if not verdict.is_loaded:
            raise Refused(f"BPF_PROG_LOAD {function}".rstrip(), verdict.errno, verdict.log)
        return Program(verdict.fd, kind, attach_type, function, verdict.log)

    def _load(
        self, instructions: bytes, kind: int, attach_type: int, function: str, options: dict[str, object]
    ) -> Verdict:
        number = 0
        if function:
            found = self.machine.layout.function(function)
            if found is None:
                raise NoSymbol(function)
            number = found
        return self.calls.load_program(instructions, kind, attach_type, number, **options)  # type: ignore[arg-type]

    def attach(self, program: Program, cookie: int = 0) -> Link:
        """Attach to the function that the program was loaded for, by BPF_LINK_CREATE. Raises :class:`Refused`."""
        extra = bytes(8) + cookie.to_bytes(8, "little") if cookie else b""
        return Link(self.calls.create_link(program.fd, program.attach_type, 0, extra))

    def attach_raw_tracepoint(self, program: Program, name: str) -> Link:
        """Attach a raw tracepoint program. Raises :class:`Refused`."""
        return Link(self.calls.open_raw_tracepoint(program.fd, name))

    def attach_probe(self, program: Program, function: str, offset: int = 0, *, on_return: bool = False) -> Link:
        """Attach by a kprobe or kretprobe event of perf, ``offset`` bytes into the function. Raises Refused."""
        return self._attach_event(program, self.calls.open_probe(function, offset, on_return=on_return))

    def attach_tracepoint(self, program: Program, event: str) -> Link:
        """Attach to a trace event by perf. Raises Refused."""
        return self._attach_event(program, self.calls.open_tracepoint(event))

    def _attach_event(self, program: Program, event: int) -> Link:
        try:
            return Link(self.calls.create_link(program.fd, AttachType.PERF_EVENT, event), event)
        except Refused:
            self._close(event)
            raise

    def attach_multi(self, program: Program, functions: tuple[str, ...], *, on_return: bool = False) -> Link:
        """Attach at several functions' entries, or returns, by one kprobe_multi link. Raises :class:`Refused`."""
        addresses = tuple(self.address(function) for function in functions)
        return Link(
            self.calls.create_multi_link(program.fd, addresses, attach_type=program.attach_type, on_return=on_return)
        )

    def detach(self, link: Link) -> None:
        """Close a link (and its perf event) and let grace periods end."""
        self._close(link.fd)
        if link.event_fd >= 0:
            self._close(link.event_fd)

    def unload(self, program: Program) -> None:
        """Close a program and let grace periods end."""
        self._close(program.fd)

    def _close(self, fd: int) -> None:
        self.calls.close(fd)
        self.drain()

    # States ---------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The present state. Raises :class:`VmlinuxError` while something is put off: drain first."""
        if self.machine.deferred:
            raise VmlinuxError(f"{len(self.machine.deferred)} deferred calls are queued: drain before a checkpoint")
        return Checkpoint(
            self.machine.memory.memory.changed_pages(), len(self.machine.log), self.machine.anonymous_inode
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a state; calls are possible again after one that did not return."""
        machine = self.machine
        machine.memory.memory.restore(checkpoint.pages)
        machine.deferred.clear()
        del machine.log[checkpoint.log :]
        machine.anonymous_inode = checkpoint.inode
        for cpu in machine.cpus:
            cpu.memory_changed()
            cpu.reset_cpu()
            cpu.unusable = None

    @contextmanager
    def trial(self) -> Iterator[UnbootedKernel]:
        """A block after which everything is as it was before, however it ends."""
        before = self.checkpoint()
        try:
            yield self
        finally:
            self.restore(before)

    def live_objects(self) -> dict[int, int]:
        """Guest address to size in bytes of everything that is allocated: what grows from call to call leaks."""
        return live_objects(self.machine)

    def close(self) -> None:
        """Give the engines back."""
        for cpu in self.machine.cpus:
            cpu.close()
        self.machine.memory.memory.close()

    def __enter__(self) -> UnbootedKernel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hundreds of thousands of names are made, and none is garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


__all__ += ["ProgType", "Refused", "Verdict"]
