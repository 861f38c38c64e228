"""Which instructions releases have, beyond the third instruction set, which all that are modelled have."""

from dataclasses import dataclass

from trampoline.bpf.isa.insn import GOTOL, Alu, Atomic, Cls, Insn, Mode, X


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What one release has."""

    extended: bool
    """The fourth set (6.6): loads and moves that extend the sign, signed division, bswap, gotol."""
    ordered: bool
    """load_acquire and store_release (6.15)."""

    def has(self, insn: Insn) -> bool:
        """Whether an instruction is in it, one of the forms that only some releases have; True for all others."""
        if insn.cls == Cls.STX and insn.mode == Mode.ATOMIC and insn.imm in (Atomic.LOAD_ACQ, Atomic.STORE_REL):
            return self.ordered
        return self.extended or not _is_extended(insn)


def _is_extended(insn: Insn) -> bool:
    if insn.cls in (Cls.ALU, Cls.ALU64):
        return (insn.op in (Alu.DIV, Alu.MOD, Alu.MOV) and insn.off != 0) or insn.code in _BSWAP
    return insn.code == GOTOL or (insn.cls == Cls.LDX and insn.mode == Mode.MEMSX)


_BSWAP = (Cls.ALU64 | Alu.END, Cls.ALU64 | Alu.END | X)

INSTRUCTION_SETS = {
    "6.1": InstructionSet(extended=False, ordered=False),
    "6.12": InstructionSet(extended=True, ordered=False),
    "7.2": InstructionSet(extended=True, ordered=True),
}
"""The sets of the releases that are modelled."""
