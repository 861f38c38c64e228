"""An image in memory with vCPUs and its floor: everything of an unbooted kernel but its initialisation.

Nothing goes by release: what is there is asked of the symbol table and of BTF.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import ChainMap, Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from unicorn.unicorn_const import UC_HOOK_CODE, UC_HOOK_INSN
from unicorn.unicorn_py3.unicorn import Uc
from unicorn.x86_const import UC_X86_INS_SYSCALL, UC_X86_REG_RIP

from asm import assemble
from emu.host import libunicorn
from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.bug_table import BugTable
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.errors import ImageError, VmlinuxError
from emu.vmlinux.floor import GROUPS, Constant, Host, Native
from emu.vmlinux.generated_code import GeneratedCode
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.kernel_image import KernelImage
from emu.vmlinux.machine import CpuSetup, KernelMachine
from emu.vmlinux.machine_errors import KernelDied
from emu.vmlinux.run import KernelMessage, Run
from emu.vmlinux.unbooted_memory import (
    IMAGE,
    IMAGE_SIZE,
    MODULES,
    MODULES_SIZE,
    PERCPU_SIZE,
    STACKS,
    UnbootedMemory,
    percpu_start,
)

__all__ = ["Deferred", "UnbootedMachine"]

STUBS = MODULES + MODULES_SIZE - 0x100000
"""The floor's machine code: in the last MiB of the modules' area, within rel32 of the kernel's text."""
_STUBS_END = MODULES + MODULES_SIZE
_STACK_STEP, _STACK_SIZE = 0x10000, 0x4000
_CALL_GAP = 0x200
"""Bytes between the top of a stack, where a task's user registers lie, and the first call."""
_JUMP_SIZE = 5
_ENDBR_FORMS = tuple(bytes.fromhex(form) for form in ("f30f1efa", "660f1f00", "0f1f4000", "d6909090"))
_NOP5 = bytes.fromhex("0f1f440000")
_SITES = (
    # first and end symbol, bytes an entry, bytes of text that can be rewritten at a site
    ("__start___jump_table", "__stop___jump_table", 16, 5),
    ("__start_static_call_sites", "__stop_static_call_sites", 8, 5),
    ("__return_sites", "__return_sites_end", 4, 5),
    ("__retpoline_sites", "__retpoline_sites_end", 4, 6),
    ("__call_sites", "__call_sites_end", 4, 5),
    ("__parainstructions", "__parainstructions_end", 16, 8),
)
_LONGEST_ALTERNATIVE = 16


@dataclass(frozen=True, slots=True)
class Deferred:
    """Something that the kernel put off: its kind (the function that queued it), a function, its argument."""

    kind: str
    function: int
    argument: int


class UnbootedMachine:
    """The kernel's memory, its vCPUs, and the host functions below its code.

    ``log`` holds the kernel's lines, ``text_writes`` what was written to live text (address, bytes), ``grace_periods``
    the waits, ``threads`` the functions of kernel threads, which never run, ``host_calls`` how often a Python function
    of the floor was reached. ``file`` is a descriptor of prepared memory, -1 for memory of zeros.
    """

    def __init__(self, symbols: Kallsyms, layout: BtfLayout, file: int = -1, cpus: int = 1) -> None:
        if not 1 <= cpus <= 8:
            raise ValueError(f"{cpus} vCPUs; 1 to 8 are possible")
        self.symbols, self.layout = symbols, layout
        self.percpu_size = PERCPU_SIZE
        self.log: list[str] = []
        self.text_writes: list[tuple[int, bytes]] = []
        self.grace_periods: list[str] = []
        self.host_calls: Counter[str] = Counter()
        self.interrupts_sent = 0
        self.threads: list[str] = []
        self.deferred: deque[Deferred] = deque()
        self.anonymous_inode = 0
        self.labels: dict[str, int] = {}
        self.redirected: dict[int, int] = {}
        self.floor_names: dict[str, str] = {}
        """Kernel functions that the floor stands for, and the group of each."""
        self.free_stub = STUBS
        self._hosts: list[tuple[str, Host]] = list(_hosts())
        self.memory = UnbootedMemory(file)
        self.names = CodeNames(symbols)
        bugs = BugTable(self.memory, symbols, layout)
        self.cpus = tuple(KernelMachine(self.memory, self.names, bugs, self._setup(number)) for number in range(cpus))
        for cpu in self.cpus:
            cpu.uc.hook_add(UC_HOOK_INSN, partial(self._trapped, cpu), None, 1, 0, UC_X86_INS_SYSCALL)

    def _setup(self, cpu: int) -> CpuSetup:
        tss = self.percpu("cpu_tss_rw", cpu) + self.layout.offset("tss_struct", "x86_tss")
        gdt, idt = self.percpu("gdt_page", cpu), self.symbols["idt_table"]
        return CpuSetup(cpu, self.percpu_base(cpu), gdt, 127, idt, tss & (1 << 64) - 1)

    # Memory ---------------------------------------------------------------------------------------------------------

    def load(self, image: KernelImage) -> None:
        """Put the image's segments and each CPU's copy of the per-CPU section where they belong; write page tables.

        Raises :class:`ImageError` for an image that is linked elsewhere.
        """
        if image.start < IMAGE or image.end > IMAGE + IMAGE_SIZE:
            raise ImageError(f"{image.origin}: linked from {image.start:#x} to {image.end:#x}, where no kernel is run")
        self.memory.map_regions(self._text_ranges())
        for segment in image.segments:
            if segment.address >> 63:
                self.memory.memory.write(self.memory.physical(segment.address), bytes(segment.content))
        first, end = self.symbols["__per_cpu_start"], self.symbols["__per_cpu_end"]
        section = image.read(first, end - first)
        for cpu in self.cpus:
            self.memory.write(percpu_start(cpu.cpu.index), section)
            cpu.memory_changed()
            cpu.reset_cpu()

    def _text_ranges(self) -> Iterator[tuple[int, int]]:
        """Pages with text symbols: .init.text and .exit.text lie among data."""
        addresses, types = self.symbols.addresses, self.symbols.types
        place, last = bisect_left(addresses, IMAGE), len(addresses)
        while place < last:
            if types[place] not in "tTwW":
                place += 1
                continue
            first = addresses[place]
            while place < last and types[place] in "tTwW":
                place += 1
            yield first, addresses[place] if place < last else first + PAGE_SIZE

    def percpu_base(self, cpu: int) -> int:
        """GS base of a CPU: its copy less ``__per_cpu_start`` (0 where the section is linked at 0)."""
        return percpu_start(cpu) - self.symbols["__per_cpu_start"] & (1 << 64) - 1

    def percpu(self, name: str, cpu: int = 0) -> int:
        """Guest address of a CPU's copy of a per-CPU variable."""
        return self.symbols[name] + self.percpu_base(cpu) & (1 << 64) - 1

    def percpu_field(self, name: str, field: str, cpu: int = 0) -> int:
        """A per-CPU variable of its own, or, in 6.2 to 6.14, a member of ``pcpu_hot``."""
        if name in self.symbols:
            return self.percpu(name, cpu)
        return self.percpu("pcpu_hot", cpu) + self.layout.offset("pcpu_hot", field)

    def stack_top(self, cpu: int) -> int:
        """End of a CPU's stack: not in the image, as the JIT would size code with its addresses wrongly."""
        return STACKS + _STACK_STEP * (cpu + 1) + _STACK_SIZE

    def write_text(self, address: int, content: bytes) -> None:
        """Change code, and have every vCPU see it."""
        self.memory.write(address, content)
        for cpu in self.cpus:
            cpu.uc.ctl_remove_cache(address, address + len(content))

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, function: str | int, *arguments: int, cpu: int = 0, seconds: float = 120.0) -> int:
        """Call a kernel function on a vCPU at full speed; its result as a signed 64-bit number.

        Raises :class:`emu.vmlinux.errors.NoSymbol` and what :meth:`emu.vmlinux.machine.KernelMachine.call` raises.
        """
        rax = self.run(function, *arguments, cpu=cpu, count=False, seconds=seconds).rax
        return rax - (1 << 64) if rax >> 63 else rax

    def run(
        self,
        function: str | int,
        *arguments: int | bytes,
        cpu: int = 0,
        count: bool = True,
        seconds: float = 120.0,
    ) -> Run:
        """Call a kernel function; with ``count`` every instruction is noted. Lines that it logs are its messages.

        Bytes are copied to the stack above the call's frames, and their address is passed. Raises VmlinuxError where
        they take more than half of the stack.
        """
        address = self.symbols[function] if isinstance(function, str) else function
        logged = len(self.log)
        top = self.stack_top(cpu) - _CALL_GAP
        values = []
        for argument in arguments:
            if isinstance(argument, bytes):
                top = top - len(argument) & ~15
                if top < self.stack_top(cpu) - _STACK_SIZE // 2:
                    raise VmlinuxError("the arguments' bytes take more than half of the stack")
                self.memory.write(top, argument)
                argument = top
            values.append(argument)
        run = self.cpus[cpu].call(address, tuple(values), top, count=count, seconds=seconds)
        self.log += [message.text for message in run.messages]
        run.messages += [KernelMessage(6, line) for line in self.log[logged : len(self.log) - len(run.messages)]]
        return run

    def update_names(self) -> None:
        """Look for code that the kernel generated since the last time, so that runs name it."""
        self.names = CodeNames(self.symbols, GeneratedCode(self.memory, self.symbols, self.layout).ranges)
        for cpu in self.cpus:
            cpu.names = self.names

    def host_state(self) -> dict[str, object]:
        """What the host knows beside the memory, as plain values."""
        return {
            "log": self.log,
            "inode": self.anonymous_inode,
            "labels": self.labels,
            "redirected": self.redirected,
            "floor": self.floor_names,
            "free_stub": self.free_stub,
        }

    def restore_host_state(self, saved: dict[str, Any]) -> None:
        """Set what ``host_state`` gave, on the memory that belongs to it."""
        self.log, self.anonymous_inode = saved["log"], saved["inode"]
        self.labels, self.floor_names, self.free_stub = saved["labels"], saved["floor"], saved["free_stub"]
        for address, target in saved["redirected"].items():
            self.redirect(address, target)

    def _trapped(self, cpu: KernelMachine, uc: Uc, _data: object) -> None:
        """A syscall instruction: r11 is the number of the host function."""
        number = cpu.regs.r11
        try:
            if number >= len(self._hosts):
                raise cpu.failure(KernelDied, "a syscall instruction")
            name, host = self._hosts[number]
            self.host_calls[name] += 1
            value = host.function(self, cpu, name)
        except BaseException as error:
            cpu.pending = error
            libunicorn.emu_stop(cpu.engine.handle)
            return
        if value is not None:
            cpu.regs.rax = value

    # What was put off -----------------------------------------------------------------------------------------------

    def defer(self, kind: str, function: int, argument: int) -> None:
        """Queue something until ``drain``."""
        self.deferred.append(Deferred(kind, function, argument))

    def defer_once(self, kind: str, argument: int) -> bool:
        """Queue a work item unless it is queued; whether it was."""
        entry = Deferred(kind, 0, argument)
        if entry in self.deferred:
            return False
        self.deferred.append(entry)
        return True

    # The floor ------------------------------------------------------------------------------------------------------

    def build_floor(self) -> None:
        """Write the floor's machine code and lead the kernel's functions to it."""
        for group in GROUPS:
            if group.needs_several_cpus and len(self.cpus) == 1:
                continue
            for entry in group.entries:
                match entry:
                    case Native():
                        self._build_native(entry, group.name)
                    case Constant():
                        self._build_constant(entry, group.name)
                    case Host():
                        self._build_host(entry, group.name)

    def _present(self, names: str) -> list[str]:
        return [name for name in names.split() if name in self.symbols]

    def _build_native(self, entry: Native, group: str) -> None:
        names = self._present(entry.names)
        if not (names or entry.label) or any(need not in self.symbols for need in entry.needs):
            return
        needed = {name: self.symbols[name] for name in entry.needs}
        image = assemble(
            entry.code(self), self._next_stub(), ChainMap(self.labels, needed), name=entry.label or names[0]
        )
        self._stub(image.code, names, group, entry.label)

    def _build_constant(self, entry: Constant, group: str) -> None:
        if names := self._present(entry.names):
            value = entry.value.to_bytes(4, "little", signed=True)
            self._stub(b"\x31\xc0\xc3" if not entry.value else b"\x48\xc7\xc0" + value + b"\xc3", names, group)

    def _build_host(self, entry: Host, group: str) -> None:
        for number, (name, host) in enumerate(self._hosts):
            if host is entry and (entry.label or name in self.symbols):
                # mov r11d, number; syscall; ret
                code = b"\x41\xbb" + number.to_bytes(4, "little") + b"\x0f\x05\xc3"
                self._stub(code, [] if entry.label else [name], group, entry.label)

    def _next_stub(self) -> int:
        return -(-self.free_stub // 16) * 16

    def _stub(self, code: bytes, names: list[str], group: str, label: str = "") -> None:
        at = self._next_stub()
        self.free_stub = at + len(code)
        if self.free_stub > _STUBS_END:
            raise VmlinuxError("the floor's code is larger than its area")
        self.write_text(at, code)
        if label:
            self.labels[label] = at
        for name in names:
            self._divert(name, at)
            self.floor_names[name] = group

    def _divert(self, name: str, target: int) -> None:
        """Jump to the floor after endbr and the ftrace site, so that these stay as they are.

        Where the kernel itself rewrites text within those bytes (static calls, alternatives, returns), it would stumble
        over the jump: such functions are redirected when they are executed.
        """
        for address in self.symbols.every(name):
            at = self.body(address)
            if self._is_rewritten(at):
                self.redirect(at, target)
            else:
                self.write_text(at, b"\xe9" + (target - at - _JUMP_SIZE).to_bytes(4, "little", signed=True))

    def redirect(self, address: int, target: int) -> None:
        """Go elsewhere whenever an address is about to be executed."""
        self.redirected[address] = target
        for cpu in self.cpus:
            cpu.uc.hook_add(UC_HOOK_CODE, partial(_go, cpu, target), None, address, address)

    def body(self, function: int) -> int:
        """First address after endbr and the call or nop of the ftrace site."""
        code = self.memory.read(function, 9)
        if code.startswith(_ENDBR_FORMS):
            function, code = function + 4, code[4:]
        if code.startswith(_NOP5):
            return function + 5
        if code[0] == 0xE8:
            target = function + 5 + int.from_bytes(code[1:5], "little", signed=True)
            if target & (1 << 64) - 1 == self.symbols.get("__fentry__"):
                return function + 5
        return function

    def _is_rewritten(self, at: int) -> bool:
        sites = self._rewritten_sites
        place = bisect_left(sites, (at + _JUMP_SIZE, 0))
        return any(start < at + _JUMP_SIZE and start + size > at for start, size in sites[max(0, place - 8) : place])

    @cached_property
    def _rewritten_sites(self) -> list[tuple[int, int]]:
        """Address and size of everything in text that boot or run time rewrites."""
        tables = [*_SITES]
        if self.layout.has("alt_instr"):
            entry = self.layout.size("alt_instr")
            tables.append(("__alt_instructions", "__alt_instructions_end", entry, _LONGEST_ALTERNATIVE))
        sites = []
        for first, end, entry, size in tables:
            start, stop = self.symbols.get(first), self.symbols.get(end)
            if start is None or stop is None:
                continue
            content = self.memory.read(start, stop - start)
            for offset in range(0, len(content) - entry + 1, entry):
                distance = int.from_bytes(content[offset : offset + 4], "little", signed=True)
                sites.append((start + offset + distance & (1 << 64) - 1, size))
        return sorted(sites)

    # Lists for reports ----------------------------------------------------------------------------------------------

    def floor_missing(self) -> list[str]:
        """Names that the floor knows and this kernel lacks."""
        every = [name for group in GROUPS for entry in group.entries for name in entry.names.split()]
        return sorted(name for name in every if name not in self.symbols)


def _go(cpu: KernelMachine, target: int, _uc: Uc, _address: int, _size: int, _data: object) -> None:
    cpu.uc.reg_write(UC_X86_REG_RIP, target)


def _hosts() -> Iterator[tuple[str, Host]]:
    """Every host function with a number that does not depend on the kernel: the numbers stand in prepared memory."""
    for group in GROUPS:
        for entry in group.entries:
            if isinstance(entry, Host):
                for name in entry.names.split() or [entry.label]:
                    yield name, entry
