"""Rules of a kernel release for the instruction set, beyond the third version, which all modelled releases have."""

from dataclasses import dataclass
from enum import Enum

from trampoline.bpf.isa.insn import GOTOL, Alu, Atomic, Cls, Insn, Mode, X


class MayGoto(Enum):
    """Bound of may_goto. The value is the number of stack bytes that a function with may_goto needs for it."""

    NONE = 0  # may_goto does not exist
    COUNTED = 8  # a count
    TIMED = 16  # a count, and the end time

    @property
    def stack(self) -> int:
        """Bytes of stack for the count and the time."""
        return self.value


@dataclass(frozen=True, slots=True)
class IsaRules:
    """Instructions that one release has."""

    extended: bool
    """The fourth version (6.6): sign-extending loads and moves, signed division, bswap, gotol."""
    ordered: bool
    """load_acquire and store_release (6.15)."""
    may_goto: MayGoto
    """may_goto (6.9), and its bound by time (6.15)."""

    def has(self, insn: Insn) -> bool:
        """True if the release has an instruction; always True for those that all releases have."""
        if insn.cls == Cls.STX and insn.mode == Mode.ATOMIC and insn.imm in (Atomic.LOAD_ACQ, Atomic.STORE_REL):
            return self.ordered
        return self.extended or not _is_extended(insn)


def _is_extended(insn: Insn) -> bool:
    if insn.cls in (Cls.ALU, Cls.ALU64):
        return (insn.op in (Alu.DIV, Alu.MOD, Alu.MOV) and insn.off != 0) or insn.code in _BSWAP
    return insn.code == GOTOL or (insn.cls == Cls.LDX and insn.mode == Mode.MEMSX)


_BSWAP = (Cls.ALU64 | Alu.END, Cls.ALU64 | Alu.END | X)
