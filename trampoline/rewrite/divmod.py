"""Divisions that no program can stop the processor with (do_misc_fixups).

The processor faults when it divides by zero, and when it divides the most negative number by -1. eBPF gives such
divisions a result (RFC 9669, 4.1): by zero the quotient is 0 and the remainder the dividend; by -1 the quotient is the
negated dividend, which wraps, and the remainder 0.
"""

from trampoline.bpf.insn import GOTO, Alu, Cls, Insn, Jmp, X


def safe_division(insn: Insn, scratch: int) -> tuple[Insn, ...] | None:
    """What the kernel puts in the place of a division; None for what it leaves alone.

    ``scratch`` is the number of the verifier's own register (BPF_REG_AX). Signed divisions since 7dd34d7b7dcf (6.12).
    """
    if insn.cls not in (Cls.ALU, Cls.ALU64) or insn.op not in (Alu.DIV, Alu.MOD):
        return None
    if not insn.from_register:
        return _by_minus_one(insn) if insn.off and insn.imm == -1 else None
    if insn.off:
        return _signed(insn, scratch)
    return _unsigned(insn)


def _by_minus_one(insn: Insn) -> tuple[Insn, ...]:
    if insn.op == Alu.DIV:
        return (Insn(insn.cls | Alu.NEG, insn.dst),)
    return (Insn(Cls.ALU | Alu.MOV, insn.dst),)


def _unsigned(insn: Insn) -> tuple[Insn, ...]:
    jump = _jump_class(insn)
    if insn.op == Alu.DIV:
        return (
            Insn(jump | Jmp.JNE, insn.src, off=2),
            Insn(Cls.ALU | Alu.XOR | X, insn.dst, insn.dst),
            Insn(GOTO, off=1),
            insn,
        )
    if insn.cls == Cls.ALU64:
        return Insn(jump | Jmp.JEQ, insn.src, off=1), insn
    return Insn(jump | Jmp.JEQ, insn.src, off=2), insn, *_cut(insn)


def _signed(insn: Insn, scratch: int) -> tuple[Insn, ...]:
    """The divisor plus one is above 1, without sign, for all divisors but 0 and -1."""
    jump = _jump_class(insn)
    test = (
        Insn(Cls.ALU64 | Alu.MOV | X, scratch, insn.src),
        Insn(insn.cls | Alu.ADD, scratch, imm=1),
    )
    if insn.op == Alu.DIV:
        return (
            *test,
            Insn(jump | Jmp.JGT, scratch, off=4, imm=1),
            Insn(jump | Jmp.JEQ, scratch, off=1),  # by -1
            Insn(insn.cls | Alu.MOV, insn.dst),
            Insn(insn.cls | Alu.NEG, insn.dst),
            Insn(GOTO, off=1),
            insn,
        )
    behind = _cut(insn) if insn.cls == Cls.ALU else ()
    return (
        *test,
        Insn(jump | Jmp.JGT, scratch, off=3, imm=1),
        Insn(jump | Jmp.JEQ, scratch, off=3 + bool(behind), imm=1),  # by 0
        Insn(Cls.ALU | Alu.MOV, insn.dst),
        Insn(GOTO, off=1),
        insn,
        *behind,
    )


def _cut(insn: Insn) -> tuple[Insn, Insn]:
    """A 32-bit remainder by zero is the dividend's lower half."""
    return Insn(GOTO, off=1), Insn(Cls.ALU | Alu.MOV | X, insn.dst, insn.dst)


def _jump_class(insn: Insn) -> Cls:
    return Cls.JMP if insn.cls == Cls.ALU64 else Cls.JMP32
