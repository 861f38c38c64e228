"""Cross-CPU text patching: ``text_poke_bp`` and its batch (arch/x86/kernel/alternative.c).

A patch is written in three steps, int3, tail, first byte; after each, every CPU serialises. Until a CPU has serialised
it may execute old or new bytes (``Vcpu.see_new``); a CPU that hits the int3 has the *new* instruction emulated.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from asm.encodings import INT3, NOPS
from emu.events import CpuSerialized, EventStream, PokePhase, TextPatches, TrapTaken
from emu.kernel.process_context import Lock, PointKind, ProcessContext
from emu.machine.address_map import ADDRESS_MASK
from emu.machine.machine import Machine
from emu.machine.vcpu import Vcpu

VECTOR_SIZE = 256
"""Patches in one batch: a page of 16-byte records (TP_ARRAY_NR_ENTRIES_MAX)."""

CALL, JMP, JMP8, RET = 0xE8, 0xE9, 0xEB, 0xC3

_DISPLACED = {CALL: 5, JMP: 5, JMP8: 2}
"""Minimum size of each in bytes."""

_EMULATED_NOPS = (NOPS[2], NOPS[5])


class TextPokeLoc(NamedTuple):
    """One site of a batch (``struct smp_text_poke_loc``). ``emulate`` is the instruction emulated after a trap."""

    address: int
    text: bytes
    emulate: bytes


class TextPoke:
    """Text patching on one machine."""

    def __init__(self, machine: Machine, process: ProcessContext, events: EventStream) -> None:
        self._machine, self._process, self._events = machine, process, events
        self.text_mutex = Lock(process, "text_mutex")
        self._queue: list[TextPokeLoc] = []
        self._live: list[TextPokeLoc] = []
        self.writes = 0
        """Number of writes to text since the start."""
        self.ipis = 0
        """Number of rounds of serialising interrupts to all CPUs since the start."""
        machine.on_int3.append(self._int3)

    def text_poke_bp(self, address: int, text: bytes, emulate: bytes | None = None) -> None:
        """Patch one site, of 1 to 5 (a conditional jump: 6) bytes. A pending batch is finished first."""
        self.batch_add(address, text, emulate)
        self.batch_finish()

    def batch_add(self, address: int, text: bytes, emulate: bytes | None = None) -> None:
        """Queue a patch. A lower address than the last one, or a full vector, flushes the queue.

        Lookup by the int3 entry is a binary search, so a batch must be sorted (2aebf5ee43bf). ValueError for an
        instruction that the int3 entry can't emulate.
        """
        queue = self._queue
        if queue and (len(queue) == VECTOR_SIZE or address < queue[-1].address):
            self.batch_finish()
        emulated = emulate or text
        if not text or len(text) != len(emulated) or not _can_emulate(emulated):
            # The kernel BUGs on instructions that its int3 entry can't emulate; here they raise before any write.
            code = text.hex() or "nothing"
            raise ValueError(f"text_poke at {address:#x}: {emulated.hex()} can't be emulated for {code}")
        self._queue.append(TextPokeLoc(address, text, emulated))

    def batch_finish(self) -> None:
        """Write the queued patches, in three phases with a serialising interrupt after each.

        NotMapped, MachineError if an address is not text; nothing is written then.
        """
        batch = self._live = self._queue
        self._queue = []
        try:
            self._phase(PokePhase.INT3, [loc.address for loc in batch], [INT3] * len(batch))
            longer = [loc for loc in batch if len(loc.text) > 1]
            self._phase(PokePhase.TAIL, [loc.address + 1 for loc in longer], [loc.text[1:] for loc in longer])
            firsts = [loc for loc in batch if loc.text[:1] != INT3]
            self._phase(PokePhase.FIRST_BYTE, [loc.address for loc in firsts], [loc.text[:1] for loc in firsts])
        finally:
            self._live = []

    def _phase(self, phase: PokePhase, addresses: list[int], texts: list[bytes]) -> None:
        """Write, then serialise every CPU; neither if there is nothing to write."""
        if not addresses:
            return

        def what(number: int) -> str:
            return f"{phase.name.lower()} at {addresses[number]:#x}"

        def on(number: int) -> tuple[int, int]:
            return addresses[number], len(texts[number])

        # Subscribers to events may read the text after each write.
        singly = self._events.has_readers
        for some in self._process.stretches(PointKind.TEXT_WRITE, len(addresses), what, on=on, singly=singly):
            at, new = addresses[some], texts[some]
            old = self._machine.write_texts(at, new)
            self.writes += len(at)
            self._events.emit_all(TextPatches(phase, at, old, new))
        self._sync_core()

    def _sync_core(self) -> None:
        self.ipis += 1
        for vcpu in self._machine.vcpus:
            self._process.point(PointKind.IPI, f"sync_core on cpu {vcpu.index}", vcpu.index)
            vcpu.serialize()
            self._events.emit(CpuSerialized(vcpu.index))

    def _int3(self, vcpu: Vcpu) -> bool:
        """``smp_text_poke_int3_handler``: emulate the new instruction of a site under way; False for any other int3."""
        site = (vcpu.regs.rip - 1) & ADDRESS_MASK
        position = bisect_left(self._live, site, key=lambda loc: loc.address)
        if position == len(self._live) or self._live[position].address != site:
            return False
        loc = self._live[position]
        if loc.emulate[:1] == INT3:
            return False
        _emulate(vcpu, self._machine, loc)
        self._events.emit(TrapTaken(vcpu.index, site, vcpu.regs.rip))
        return True


def _can_emulate(code: bytes) -> bool:
    opcode, size = code[0], len(code)
    if opcode in _DISPLACED:
        return size >= _DISPLACED[opcode]
    if opcode in (RET, INT3[0]):
        return not code[1:].strip(INT3)
    jcc8 = opcode & 0xF0 == 0x70 and size == 2
    jcc32 = opcode == 0x0F and size == 6 and code[1] & 0xF0 == 0x80
    return code in _EMULATED_NOPS or jcc8 or jcc32


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
