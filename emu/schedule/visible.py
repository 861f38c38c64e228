"""Visible instructions: those before which a step of another CPU could make a difference.

Between two of them a vCPU touches only registers, its own stack and its own per-CPU data, so that a schedule need not
stop there. Found by decoding code when it is placed, instruction by instruction:

- loads and stores, except through rsp, through rbp as a frame pointer, and through gs at a constant offset
  (per-CPU data that its CPU alone uses; ``shared_percpu`` names the others)
- fetches from text that may be patched: nops of five bytes and of one, and patched sites
- serialising instructions
"""

import ctypes
import mmap
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import capstone
from capstone import x86_const as x86

from asm.encodings import INT3, NOPS
from emu.host.access_log import VisitLog
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.address_map import ADDRESS_MASK
from emu.machine.machine import Machine
from emu.machine.registers import SAVED

_FRAME_POINTER = bytes.fromhex("4889e5")
"""mov rbp, rsp: rbp is a frame pointer in code that contains it."""
_SERIALISING = frozenset({x86.X86_INS_CPUID, x86.X86_INS_INVLPG, x86.X86_INS_IRETQ})
_NO_ACCESS = frozenset({x86.X86_INS_LEA, x86.X86_INS_NOP})
_STACK = frozenset({x86.X86_REG_RSP, x86.X86_REG_ESP})
_FRAME = frozenset({x86.X86_REG_RBP, x86.X86_REG_EBP})


_MOST_DECODED = 1 << 14
_decoded: "dict[tuple[int, bytes, frozenset[int]], dict[int, VisibleInstruction]]" = {}
"""Visible instructions of code at an address: equal boots of the kernel share them."""


@dataclass(frozen=True, slots=True)
class VisibleAccess:
    """A memory operand. ``base`` and ``index`` are positions in ``registers.SAVED``, -1 for none."""

    base: int
    index: int
    scale: int
    displacement: int
    by_gs: bool
    size: int
    writes: bool

    def address(self, registers: list[int], gs_base: int) -> int:
        """Guest address of the operand with these registers (those of ``SAVED``)."""
        address = self.displacement
        if self.base >= 0:
            address += registers[self.base]
        if self.index >= 0:
            address += registers[self.index] * self.scale
        if self.by_gs:
            address += gs_base
        return address & ADDRESS_MASK


@dataclass(frozen=True, slots=True)
class VisibleInstruction:
    """A visible instruction. ``accesses`` is empty if only its fetch makes it visible."""

    size: int
    text: str
    accesses: tuple[VisibleAccess, ...]
    is_site: bool
    """True if it may be patched: its fetch is a read."""


class VisibleInstructions:
    """The visible instructions of a machine's code, in the form in which its engines stop at them.

    ``ranges``: at most two ranges of guest addresses of code. ``shared_percpu``: offsets of per-CPU words at constant
    addresses that other CPUs use.
    """

    IS_CACHE = True  # a checkpoint leaves it alone: restored by ``World.reset``

    def __init__(
        self, machine: Machine, ranges: Iterable[tuple[int, int]], *, shared_percpu: Collection[int] = ()
    ) -> None:
        self._machine, self._shared = machine, frozenset(shared_percpu)
        self._marks: list[tuple[int, int, mmap.mmap]] = []
        self._engine_ranges: list[tuple[int, int, int]] = []
        for start, size in ranges:
            marks = mmap.mmap(-1, size)
            host = ctypes.addressof(ctypes.c_char.from_buffer(marks))
            self._marks.append((start, size, marks))
            self._engine_ranges.append((start, size, host))
        self._decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True
        self._found: dict[tuple[int, bytes], dict[int, VisibleInstruction]] = {}
        self.instructions: dict[int, VisibleInstruction] = {}
        """By address."""
        self.private: set[tuple[int, str]] = set()
        """Address and text of instructions that are known to touch only their own stack."""
        self.logs: list[VisitLog] = []
        """Log of each vCPU's visits, from the next ``install`` on; see ``log_visits``."""
        self._changed: set[tuple[int, int]] = set()
        self._base: dict[int, VisibleInstruction] = {}
        self._base_order: list[int] = []

    def log_visits(self) -> None:
        """Make vCPUs log the visible instructions and memory accesses that they execute, from the next ``install``."""
        self.logs = [VisitLog() for _ in self._machine.vcpus]

    def install(self) -> None:
        """Make every vCPU's limits count visible instructions from now on, and watch for new code."""
        for number, vcpu in enumerate(self._machine.vcpus):
            vcpu.engine.count_marked(self._engine_ranges, self.logs[number] if self.logs else None)
        self._machine.after_code = self.code_changed

    def remove(self) -> None:
        """Undo ``install``."""
        self._machine.after_code = None
        for vcpu in self._machine.vcpus:
            vcpu.engine.count_marked(())

    def hold(self) -> None:
        """Make the current text the one that ``reset`` returns to."""
        self._base, self._base_order = dict(self.instructions), sorted(self.instructions)
        self._changed.clear()

    def reset(self) -> None:
        """Update after guest memory was reset to the text of ``hold``."""
        for start, end in self._changed:
            self._clear(start, end)
        for start, end in self._changed:
            first, last = bisect_left(self._base_order, start), bisect_left(self._base_order, end)
            for address in self._base_order[first:last]:
                self._mark(address, self._base[address])
        self._changed.clear()

    def site_over(self, address: int) -> int:
        """The patch site that contains an address; the address itself if there is none."""
        for site in range(address, address - SITE_SIZE, -1):
            instruction = self.instructions.get(site)
            if instruction is not None and instruction.is_site and address < site + instruction.size:
                return site
        return address

    def code_changed(self, start: int, end: int) -> None:
        """Update after code was placed, or text was patched."""
        if end - start <= SITE_SIZE:
            self._patched(start)
            return
        code = self._machine.read(start, end - start)
        if code[:1] == INT3 and not code.strip(INT3):
            self._forget(start, end)
        else:
            self.add(start, code)

    def add(self, start: int, code: bytes) -> None:
        """Find the visible instructions of code that begins at an address."""
        key = start, code
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._decode(start, code)
        marks = self._marks_at(start)
        if marks is None:
            return
        self._forget(start, start + len(code))
        self.instructions.update(found)
        base, memory = marks
        for address in found:
            memory[address - base] = 1

    def forget_private(self, touched: Mapping[tuple[int, str], bool]) -> None:
        """Permanently unmark instructions that were executed and touched only their task's private memory: the current
        text is the one that ``reset`` returns to.

        ``touched``: by address and text, True if other memory was touched.
        """
        self.private.update(instruction for instruction, shared in touched.items() if not shared)
        for key, found in self._found.items():
            self._found[key] = {
                address: instruction
                for address, instruction in found.items()
                if (address, instruction.text) not in self.private
            }
        for address, text in self.private:
            instruction = self.instructions.get(address)
            if instruction is not None and instruction.text == text:
                self._clear(address, address + 1)
        self.hold()

    def _patched(self, start: int) -> None:
        """Handle a patched range. A write after its site's first byte belongs to a known site."""
        if start in self.instructions:
            instruction = self.instructions[start]
            if not instruction.is_site:
                self._changed.add((start, start + 1))
                self.instructions[start] = VisibleInstruction(
                    instruction.size, instruction.text, instruction.accesses, True
                )
            return
        if self.site_over(start) != start:
            return
        self._changed.add((start, start + 1))
        self._mark(start, VisibleInstruction(SITE_SIZE, "patched text", (), True))

    def _forget(self, start: int, end: int) -> None:
        self._changed.add((start, end))
        self._clear(start, end)

    def _clear(self, start: int, end: int) -> None:
        marks = self._marks_at(start)
        if marks is None:
            return
        base, memory = marks
        marked = memory.find(b"\1", start - base, end - base)
        while marked >= 0:
            memory[marked] = 0
            del self.instructions[base + marked]
            marked = memory.find(b"\1", marked + 1, end - base)

    def _mark(self, address: int, instruction: VisibleInstruction) -> None:
        marks = self._marks_at(address)
        if marks is not None:
            self.instructions[address] = instruction
            marks[1][address - marks[0]] = 1

    def _marks_at(self, address: int) -> tuple[int, mmap.mmap] | None:
        for start, size, marks in self._marks:
            if 0 <= address - start < size:
                return start, marks
        return None

    def _decode(self, start: int, code: bytes) -> dict[int, VisibleInstruction]:
        key = start, code, self._shared
        every = _decoded.get(key)
        if every is None:
            frame_pointer = _FRAME_POINTER in code
            every = {}
            for insn in self._decoder.disasm(code, start):
                instruction = self._visible(insn, frame_pointer)
                if instruction is not None:
                    every[insn.address] = instruction
            if len(_decoded) >= _MOST_DECODED:
                _decoded.clear()
            _decoded[key] = every
        private = self.private
        return {address: one for address, one in every.items() if (address, one.text) not in private}

    def _visible(self, insn: "capstone.CsInsn", frame_pointer: bool) -> VisibleInstruction | None:
        code = bytes(insn.bytes)
        site = code in (NOPS[5], NOPS[1])
        accesses = [] if insn.id in _NO_ACCESS else list(self._accesses(insn, frame_pointer))
        if not (site or accesses or insn.id in _SERIALISING):
            return None
        return VisibleInstruction(insn.size, f"{insn.mnemonic} {insn.op_str}".strip(), tuple(accesses), site)

    def _accesses(self, insn: "capstone.CsInsn", frame_pointer: bool) -> Iterable[VisibleAccess]:
        for operand in insn.operands:
            if operand.type != x86.X86_OP_MEM:
                continue
            memory = operand.mem
            if memory.base in _STACK or (frame_pointer and memory.base in _FRAME and not memory.index):
                continue
            by_gs = memory.segment == x86.X86_REG_GS
            if by_gs and not memory.base and not memory.index and memory.disp not in self._shared:
                continue
            displacement, base = memory.disp, _position(insn.reg_name(memory.base) if memory.base else "")
            if memory.base == x86.X86_REG_RIP:
                displacement, base = memory.disp + insn.address + insn.size, -1
            index = _position(insn.reg_name(memory.index) if memory.index else "")
            writes = bool(operand.access & capstone.CS_AC_WRITE)
            yield VisibleAccess(base, index, memory.scale, displacement, by_gs, operand.size, writes)


def _position(name: str) -> int:
    if not name:
        return -1
    return SAVED.index(name) if name in SAVED else -1
