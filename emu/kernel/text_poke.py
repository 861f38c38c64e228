"""Cross-CPU text patching: ``text_poke_bp`` and its batch (arch/x86/kernel/alternative.c).

Every patch goes int3, tail, first byte; after each write every CPU serialises. Until a CPU has serialised it may
execute old or new bytes (``Vcpu.see_new``); a CPU that hits the int3 has the *new* instruction emulated.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from asm.encodings import INT3, NOPS
from emu.events import CpuSerialized, EventStream, PokePhase, TextPatched, TrapTaken
from emu.machine import Machine
from emu.process import Lock, PointKind, ProcessContext
from emu.vcpu import Vcpu

VECTOR_SIZE = 256
"""Patches in one batch: a page of 16-byte records (TP_ARRAY_NR_ENTRIES_MAX)."""

CALL, JMP, JMP8, RET = 0xE8, 0xE9, 0xEB, 0xC3

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TextPokeLoc:
    """One site of a batch (``struct smp_text_poke_loc``). ``emulate`` is what a CPU that traps executes."""

    address: int
    text: bytes
    emulate: bytes
    old: bytes


class TextPoke:
    """The patching of one machine's text."""

    def __init__(self, machine: Machine, process: ProcessContext, events: EventStream) -> None:
        self._machine, self._process, self._events = machine, process, events
        self.text_mutex = Lock(process, "text_mutex")
        self._queue: list[TextPokeLoc] = []
        self._live: list[TextPokeLoc] = []
        self.writes = 0
        """Writes to text since the start."""
        self.ipis = 0
        """Rounds of serialising interrupts to all CPUs since the start."""
        machine.on_int3.append(self._int3)

    def text_poke_bp(self, address: int, text: bytes, emulate: bytes | None = None) -> None:
        """Patch one site, of 1 to 5 (a conditional jump: 6) bytes. A pending batch is finished first."""
        self.batch_add(address, text, emulate)
        self.batch_finish()

    def batch_add(self, address: int, text: bytes, emulate: bytes | None = None) -> None:
        """Queue a patch. A lower address than the last one, or a full vector, flushes what is queued.

        Lookup by the int3 entry is a binary search, so a batch must be sorted (2aebf5ee43bf).
        """
        if self._queue and (len(self._queue) == VECTOR_SIZE or address < self._queue[-1].address):
            self.batch_finish()
        emulated = emulate or text
        _check_emulation(address, text, emulated)
        self._queue.append(TextPokeLoc(address, text, emulated, self._machine.read(address, len(text))))

    def batch_finish(self) -> None:
        """Write everything that is queued, in three phases with a serialising interrupt after each."""
        if not self._queue:
            return
        self._live, self._queue = self._queue, []
        try:
            batch = self._live
            for loc in batch:
                self._write(PokePhase.INT3, loc.address, INT3)
            self._sync_core()
            longer = [loc for loc in batch if len(loc.text) > 1]
            for loc in longer:
                self._write(PokePhase.TAIL, loc.address + 1, loc.text[1:])
            if longer:
                self._sync_core()
            firsts = [loc for loc in batch if loc.text[:1] != INT3]
            for loc in firsts:
                self._write(PokePhase.FIRST_BYTE, loc.address, loc.text[:1])
            if firsts:
                self._sync_core()
        finally:
            self._live = []

    def _write(self, phase: PokePhase, address: int, data: bytes) -> None:
        self._process.point(PointKind.TEXT_WRITE, f"{phase.name.lower()} at {address:#x}")
        old = self._machine.read(address, len(data))
        self._machine.write_text(address, data)
        self.writes += 1
        self._events.emit(TextPatched(phase, address, old, data))

    def _sync_core(self) -> None:
        self.ipis += 1
        for vcpu in self._machine.vcpus:
            self._process.point(PointKind.IPI, f"sync_core on cpu {vcpu.index}")
            vcpu.serialize()
            self._events.emit(CpuSerialized(vcpu.index))

    def _int3(self, vcpu: Vcpu) -> bool:
        """``smp_text_poke_int3_handler``: emulate the new instruction of a site under way; False if it is not ours."""
        site = (vcpu.regs.rip - 1) & _MASK
        position = bisect_left(self._live, site, key=lambda loc: loc.address)
        if position == len(self._live) or self._live[position].address != site:
            return False
        loc = self._live[position]
        if loc.emulate[:1] == INT3:
            return False
        _emulate(vcpu, self._machine, loc)
        self._events.emit(TrapTaken(vcpu.index, site, vcpu.regs.rip))
        return True


def _check_emulation(address: int, text: bytes, emulated: bytes) -> None:
    """The kernel BUGs on instructions that its int3 entry can't emulate; we refuse them before anything is written."""
    opcode = emulated[0] if emulated else 0
    jcc32 = opcode == 0x0F and len(emulated) == 6 and emulated[1] & 0xF0 == 0x80
    fits = {CALL: 5, JMP: 5, JMP8: 2}.get(opcode)
    padding = emulated[1:].strip(INT3)
    known = (
        (fits is not None and len(emulated) >= fits)
        or (opcode & 0xF0 == 0x70 and len(emulated) == 2)
        or jcc32
        or emulated in (NOPS[2], NOPS[5])
        or (opcode in (RET, INT3[0]) and not padding)
    )
    if not text or len(text) != len(emulated) or not known:
        raise ValueError(f"text_poke at {address:#x}: {emulated.hex()} can't be emulated for {text.hex() or 'nothing'}")


def _emulate(vcpu: Vcpu, machine: Machine, loc: TextPokeLoc) -> None:
    code, after = loc.emulate, loc.address + len(loc.text)
    opcode, regs = code[0], vcpu.regs
    if opcode == RET:
        regs.rip = machine.read_u64(regs.rsp)
        regs.rsp = regs.rsp + 8
    elif opcode == CALL:
        regs.rsp = regs.rsp - 8
        machine.write_u64(regs.rsp, after)
        regs.rip = after + _signed(code[1:5])
    elif opcode == JMP:
        regs.rip = after + _signed(code[1:5])
    elif opcode == JMP8:
        regs.rip = after + _signed(code[1:2])
    elif opcode & 0xF0 == 0x70:
        regs.rip = after + (_signed(code[1:2]) if _taken(opcode & 0xF, regs.rflags) else 0)
    elif opcode == 0x0F and code[1] & 0xF0 == 0x80:
        regs.rip = after + (_signed(code[2:6]) if _taken(code[1] & 0xF, regs.rflags) else 0)
    else:
        regs.rip = after


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_CONDITIONS: tuple[Callable[[bool, bool, bool, bool, bool], bool], ...] = (
    lambda c, p, z, s, o: o,
    lambda c, p, z, s, o: c,
    lambda c, p, z, s, o: z,
    lambda c, p, z, s, o: c or z,
    lambda c, p, z, s, o: s,
    lambda c, p, z, s, o: p,
    lambda c, p, z, s, o: s != o,
    lambda c, p, z, s, o: z or s != o,
)
"""Conditions 0, 2, 4 ... of a conditional jump from CF, PF, ZF, SF, OF; an odd number is the opposite."""


def _taken(condition: int, rflags: int) -> bool:
    c, p, z, s, o = (bool(rflags >> bit & 1) for bit in (0, 2, 6, 7, 11))
    return _CONDITIONS[condition >> 1](c, p, z, s, o) != bool(condition & 1)
