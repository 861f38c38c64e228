"""Replacement of divisions that would trap: by zero, and of the minimum by -1."""

from trampoline.bpf.isa.insn import Alu, Cls, Insn, X
from trampoline.bpf.rewrite import emit


def safe_division(insn: Insn, ax: int) -> list[Insn] | None:
    """Replacement of a division or remainder; None if it is safe unchanged.

    x / 0 is 0 and x % 0 is x; signed, minimum / -1 is minimum and x % -1 is 0 (RFC 9669).
    """
    wide = insn.cls == Cls.ALU64
    is_div = insn.op == Alu.DIV
    dst, src = insn.dst, insn.src
    if not insn.code & X:
        if insn.off != 1 or insn.imm != -1:
            return None
        return [emit.alu_imm(Alu.NEG, dst, wide=wide) if is_div else emit.mov32_imm(dst, 0)]
    # A skipped 32-bit remainder must still clear the upper half.
    cut = [] if wide or is_div else [emit.jump(1), emit.mov32(dst, dst)]
    if insn.off == 1:
        ahead = [emit.mov(ax, src), emit.alu_imm(Alu.ADD, ax, 1, wide=wide)]  # 0 for -1, 1 for 0
        if is_div:
            return [
                *ahead,
                emit.jump_if(emit.JGT, ax, 1, 4, wide=wide),
                emit.jump_if(emit.JEQ, ax, 0, 1, wide=wide),
                emit.alu_imm(Alu.MOV, dst, 0, wide=wide),
                emit.alu_imm(Alu.NEG, dst, wide=wide),
                emit.jump(1),
                insn,
            ]
        return [
            *ahead,
            emit.jump_if(emit.JGT, ax, 1, 3, wide=wide),
            emit.jump_if(emit.JEQ, ax, 1, 3 if wide else 4, wide=wide),
            emit.mov32_imm(dst, 0),
            emit.jump(1),
            insn,
            *cut,
        ]
    if is_div:
        return [
            emit.jump_if(emit.JNE, src, 0, 2, wide=wide),
            emit.alu32(Alu.XOR, dst, dst),
            emit.jump(1),
            insn,
        ]
    return [emit.jump_if(emit.JEQ, src, 0, 1 if wide else 2, wide=wide), insn, *cut]
