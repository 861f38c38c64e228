"""The one upper half that x86 does not clear by itself (bpf_opt_subreg_zext_lo32_rnd_hi32)."""

from trampoline.bpf.isa.insn import ZEXT, Alu, Atomic, Cls, Insn, Mode, Size, X


def zero_extended(insn: Insn) -> tuple[Insn, ...] | None:
    """A 32-bit compare and exchange with r0's upper half cleared behind it; None for all else.

    Where the comparison holds, ``cmpxchg`` does not write eax, so that the upper half stays. Kernels leave the
    clearing out where the verifier saw that nothing reads the upper half.
    """
    if insn.code == Cls.STX | Mode.ATOMIC | Size.W and insn.imm == Atomic.CMPXCHG:
        return insn, Insn(Cls.ALU | Alu.MOV | X, imm=ZEXT)
    return None
