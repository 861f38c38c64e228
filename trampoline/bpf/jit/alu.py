"""Machine code of arithmetic, moves and byte swaps (ALU and ALU64). Registers are the processor's numbers."""

from functools import cache

from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.jit.encode import (
    NONE,
    PLAIN,
    R11,
    RAX,
    RCX,
    RDX,
    WIDE,
    alu_imm,
    imm8,
    imm32,
    mov,
    mov_imm32,
    pop,
    push,
    reg_reg,
    shift_by_register,
    short,
)

_BINARY = {Alu.ADD: 0x01, Alu.SUB: 0x29, Alu.AND: 0x21, Alu.OR: 0x09, Alu.XOR: 0x31}
"""Opcode of ``op rm, reg``."""
_EXTENSION = {Alu.ADD: 0, Alu.OR: 1, Alu.AND: 4, Alu.SUB: 5, Alu.XOR: 6, Alu.LSH: 4, Alu.RSH: 5, Alu.ARSH: 7}
"""ModRM.reg of the forms with an immediate, and of shifts."""
_ACCUMULATOR = {Alu.ADD: 0x05, Alu.SUB: 0x2D, Alu.AND: 0x25, Alu.OR: 0x0D, Alu.XOR: 0x35}
"""Opcode of ``op eax, imm32``."""
_SHIFT_PREFIX = {Alu.LSH: 1, Alu.RSH: 3, Alu.ARSH: 2}
"""VEX.pp of shlx, shrx, sarx."""


def operation_opcode(op: int) -> bytes:
    """Opcode of ``op rm, reg``, for operations that atomic instructions use too."""
    return _BINARY[Alu(op)].to_bytes()


def _rex(wide: bool) -> int:
    return WIDE if wide else NONE


@cache
def with_immediate(op: int, dst: int, value: int, wide: bool) -> bytes:
    """``dst op= value``, for operations with an immediate form."""
    if op in _BINARY:
        return alu_imm(_EXTENSION[Alu(op)], _ACCUMULATOR[Alu(op)], dst, value, wide)
    if op == Alu.MOV:
        return mov_imm32(dst, value, sign_extended=wide)
    if op == Alu.MUL:
        # imul dst, dst, imm
        if -0x80 <= value < 0x80:
            return reg_reg(b"\x6b", dst, dst, _rex(wide)) + imm8(value)
        return reg_reg(b"\x69", dst, dst, _rex(wide)) + imm32(value)
    extension = _EXTENSION[Alu(op)]
    if value == 1:
        return reg_reg(b"\xd1", dst, extension, _rex(wide))  # shl dst, 1
    return reg_reg(b"\xc1", dst, extension, _rex(wide)) + imm8(value)  # shl dst, imm8


@cache
def with_register(op: int, dst: int, src: int, wide: bool) -> bytes:
    """``dst op= src``, for operations that accept any registers."""
    if op in _BINARY:
        return reg_reg(_BINARY[Alu(op)].to_bytes(), dst, src, _rex(wide))
    if op == Alu.MOV:
        return mov(dst, src, wide)
    return reg_reg(b"\x0f\xaf", src, dst, _rex(wide))  # imul dst, src


@cache
def shift(op: int, dst: int, src: int, wide: bool, *, bmi2: bool, frugal: bool) -> bytes:
    """``dst`` shifted by a register: x86 takes the count in cl, BMI2 in any register.

    ``frugal``: omit the moves that are not needed if rcx is shifted or is the count.
    """
    if bmi2 and src != RCX:
        return shift_by_register(_SHIFT_PREFIX[Alu(op)], dst, src, wide)
    aside = dst == RCX and (src != RCX or not frugal)
    saves_rcx = src != RCX and not (aside and frugal)
    code = mov(R11, RCX) if aside else b""
    if saves_rcx:
        code += push(RCX)
    code += mov(RCX, src)
    code += reg_reg(b"\xd3", R11 if aside else dst, _EXTENSION[Alu(op)], _rex(wide))  # shl dst, cl
    if saves_rcx:
        code += pop(RCX)
    return code + (mov(RCX, R11) if aside else b"")


@cache
def negate(dst: int, wide: bool) -> bytes:
    """``dst = -dst``."""
    return reg_reg(b"\xf7", dst, 3, _rex(wide))


@cache
def divide(op: int, dst: int, src: int | None, value: int, wide: bool, signed: bool) -> bytes:
    """``dst /= src`` or ``dst %= src``; ``src`` None: by the immediate.

    ``div`` works on rdx:rax, so both are saved unless they receive the result.
    """
    code = b""
    if dst != RAX:
        code += push(RAX)
    if dst != RDX:
        code += push(RDX)
    if src is None:
        code += reg_reg(b"\xc7", R11, 0, WIDE) + imm32(value)  # mov r11, imm32
        src = R11
    elif src in (RAX, RDX):
        code += mov(R11, src)
        src = R11
    if dst != RAX:
        code += mov(RAX, dst, wide)
    if signed:
        code += b"\x48\x99" if wide else b"\x99"  # cqo, cdq
        code += reg_reg(b"\xf7", src, 7, _rex(wide))  # idiv src
    else:
        code += reg_reg(b"\x31", RDX, RDX)  # xor edx, edx
        code += reg_reg(b"\xf7", src, 6, _rex(wide))  # div src
    result = RDX if op == Alu.MOD else RAX
    if dst != result:
        code += mov(dst, result, wide)
    if dst != RDX:
        code += pop(RDX)
    if dst != RAX:
        code += pop(RAX)
    return code


@cache
def sign_extend(dst: int, src: int, bits: int, wide: bool) -> bytes:
    """``dst = (s8, s16 or s32)src``."""
    if bits == 32:
        return reg_reg(b"\x63", src, dst, WIDE)  # movsxd dst, src
    if bits == 8:
        return reg_reg(b"\x0f\xbe", src, dst, WIDE if wide else PLAIN)  # movsx dst, src8
    return reg_reg(b"\x0f\xbf", src, dst, _rex(wide))  # movsx dst, src16


@cache
def truncate(dst: int, bits: int) -> bytes:
    """``dst`` to little endian: its low bits."""
    if bits == 16:
        return _zero_extend16(dst)
    return reg_reg(b"\x89", dst, dst) if bits == 32 else b""  # mov dst, dst


@cache
def byte_swap(dst: int, bits: int) -> bytes:
    """``dst`` with its bytes reversed; bits above 16 or 32 are cleared."""
    if bits == 16:
        return b"\x66" + reg_reg(b"\xc1", dst, 1) + imm8(8) + _zero_extend16(dst)  # ror dst16, 8
    code = short(0xC8, dst, WIDE if bits == 64 else NONE)  # bswap dst
    return code[:-1] + b"\x0f" + code[-1:]


def _zero_extend16(dst: int) -> bytes:
    return reg_reg(b"\x0f\xb7", dst, dst)  # movzx dst, dst16


@cache
def cast_to_user(dst: int, src: int, user_vm_start: int) -> bytes:
    """``dst`` = the arena address ``src`` as a user-space address; 0 stays 0 (addr_space_cast)."""
    code = b"" if dst == src else reg_reg(b"\x89", dst, src)  # mov dst32, src32
    code += reg_reg(b"\xc1", dst, 4, WIDE) + imm8(32)  # shl dst, 32
    upper = imm32(user_vm_start >> 32)
    if dst == RAX:
        code += b"\x48\x0d" + upper  # or rax, user_vm_start >> 32
    else:
        code += reg_reg(b"\x81", dst, 1, WIDE) + upper
    code += reg_reg(b"\xc1", dst, 0, WIDE) + imm8(32)  # rol dst, 32
    code += reg_reg(b"\x31", R11, R11, WIDE)  # xor r11, r11
    code += reg_reg(b"\x85", dst, dst)  # test dst32, dst32
    return code + reg_reg(b"\x0f\x44", R11, dst, WIDE)  # cmove dst, r11


@cache
def add_percpu(dst: int, src: int, this_cpu_off: int) -> bytes:
    """``dst = src + this CPU's offset``."""
    # add dst, gs:[this_cpu_off]; SIB 25: neither base nor index
    rex = (WIDE | (dst >> 3) << 2).to_bytes()
    load = b"\x65" + rex + b"\x03" + (0x04 | (dst & 7) << 3).to_bytes() + b"\x25" + imm32(this_cpu_off)
    return mov(dst, src) + load
