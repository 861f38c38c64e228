"""Comparisons and the jumps after them."""

from functools import cache

from trampoline.bpf.isa.insn import Jmp
from trampoline.bpf.jit.encode import NONE, WIDE, fits8, imm8, imm32, reg_reg

CONDITIONS = {
    Jmp.JEQ: 0x74,
    Jmp.JNE: 0x75,
    Jmp.JSET: 0x75,
    Jmp.JGT: 0x77,
    Jmp.JLT: 0x72,
    Jmp.JGE: 0x73,
    Jmp.JLE: 0x76,
    Jmp.JSGT: 0x7F,
    Jmp.JSLT: 0x7C,
    Jmp.JSGE: 0x7D,
    Jmp.JSLE: 0x7E,
}
"""Opcode of the two-byte jump of each condition; the long form is 0F and the opcode plus 0x10."""


@cache
def compare_registers(op: int, dst: int, src: int, wide: bool) -> bytes:
    """``cmp dst, src``, or ``test`` for JSET."""
    opcode = b"\x85" if op == Jmp.JSET else b"\x39"
    return reg_reg(opcode, dst, src, WIDE if wide else NONE)


@cache
def compare_immediate(op: int, dst: int, value: int, wide: bool) -> bytes:
    """``cmp dst, value``, or ``test`` for JSET and for 0."""
    rex = WIDE if wide else NONE
    if op == Jmp.JSET:
        return reg_reg(b"\xf7", dst, 0, rex) + imm32(value)  # test dst, imm32
    if value == 0:
        return reg_reg(b"\x85", dst, dst, rex)  # test dst, dst
    if fits8(value):
        return reg_reg(b"\x83", dst, 7, rex) + imm8(value)  # cmp dst, imm8
    return reg_reg(b"\x81", dst, 7, rex) + imm32(value)  # cmp dst, imm32


def short_jump(condition: int | None, distance: int) -> bytes:
    """The two-byte form of a jump; ``distance`` in bytes."""
    return bytes((0xEB if condition is None else condition, distance & 0xFF))


def long_jump(condition: int | None, distance: int) -> bytes:
    """The long form of a jump, five bytes, six with a condition; ``distance`` in bytes."""
    opcode = b"\xe9" if condition is None else bytes((0x0F, condition + 0x10))
    return opcode + imm32(distance)


def long_size(condition: int | None) -> int:
    """Size of the long form in bytes."""
    return 5 if condition is None else 6
