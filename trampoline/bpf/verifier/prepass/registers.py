"""Registers that an instruction reads and writes."""

from trampoline.bpf.isa.insn import CALL, EXIT, GOTO, GOTOL, GOTOX, LD_IMM64, MAY_GOTO, Alu, Atomic, Cls, Insn, Mode, X

_ARGUMENTS = 0b111110
_CLOBBERED = 0b111111


def uses_and_defines(insn: Insn) -> tuple[int, int]:
    """Bit masks of the registers that an instruction reads, and that it writes without reading them first."""
    cls = insn.code & 7
    dst, src = 1 << insn.dst, 1 << insn.src
    if cls in (Cls.ALU, Cls.ALU64):
        op, from_reg = insn.code & 0xF0, insn.code & X
        if op == Alu.MOV:
            return (src if from_reg else 0), dst
        if op in (Alu.NEG, Alu.END):
            return dst, dst
        return (src | dst if from_reg else dst), dst
    if cls in (Cls.JMP, Cls.JMP32):
        if insn.code == CALL:
            return _ARGUMENTS, _CLOBBERED
        if insn.code == EXIT:
            return 1, 0
        if insn.code == GOTOX:
            return dst, 0
        if insn.code in (GOTO, GOTOL, MAY_GOTO):
            return 0, 0
        return (src | dst if insn.code & X else dst), 0
    if cls == Cls.LDX:
        return src, dst
    if cls == Cls.ST:
        return dst, 0
    if cls == Cls.STX:
        if insn.code & 0xE0 != Mode.ATOMIC:
            return src | dst, 0
        if insn.imm == Atomic.LOAD_ACQ:
            return src, dst
        if insn.imm == Atomic.CMPXCHG:
            return src | dst | 1, 1
        return src | dst, (src if insn.imm & 1 else 0)
    if insn.code == LD_IMM64:
        return 0, dst
    indirect = src if insn.code & 0xE0 == Mode.IND else 0
    return 1 << 6 | indirect, _CLOBBERED
