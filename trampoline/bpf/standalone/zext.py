"""Clears the upper half that x86 leaves unchanged (bpf_opt_subreg_zext_lo32_rnd_hi32)."""

from trampoline.bpf.isa.insn import ZEXT, Alu, Atomic, Cls, Insn, Mode, Size, X


def zero_extended(insn: Insn) -> tuple[Insn, ...] | None:
    """A 32-bit compare and exchange followed by clearing r0's upper half; None for other instructions.

    If the comparison succeeds, ``cmpxchg`` does not write eax, so the upper half stays. Kernels omit the clearing if
    the verifier found that the upper half is not read.
    """
    if insn.code == Cls.STX | Mode.ATOMIC | Size.W and insn.imm == Atomic.CMPXCHG:
        return insn, Insn(Cls.ALU | Alu.MOV | X, imm=ZEXT)
    return None
