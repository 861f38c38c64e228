"""Machine code of loads, stores and atomic operations. Registers are the processor's numbers."""

from functools import cache

from trampoline.bpf.isa.insn import Atomic, Size
from trampoline.bpf.jit.alu import operation_opcode
from trampoline.bpf.jit.encode import (
    NONE,
    PLAIN,
    R10,
    R11,
    RAX,
    RBX,
    RDX,
    WIDE,
    alu_imm32,
    imm8,
    imm32,
    indexed,
    memory,
    mov,
    mov_imm64,
    reg_reg,
    short,
)

_VSYSCALL_ADDR = (1 << 64) - (10 << 20)
_FETCHES_BY_LOOP = (Atomic.FETCH_AND, Atomic.FETCH_OR, Atomic.FETCH_XOR)


@cache
def load(size: int, dst: int, base: int, disp: int, *, signed: bool = False, index: int | None = None) -> bytes:
    """``dst = *(base + index + disp)``, extended to 64 bits; without an index, narrow loads use 64-bit forms."""
    narrow = WIDE if index is None or signed else PLAIN
    if signed:
        opcode, rex = {Size.B: b"\x0f\xbe", Size.H: b"\x0f\xbf", Size.W: b"\x63"}[Size(size)], WIDE
    elif size == Size.B:
        opcode, rex = b"\x0f\xb6", narrow
    elif size == Size.H:
        opcode, rex = b"\x0f\xb7", narrow
    else:
        opcode, rex = b"\x8b", WIDE if size == Size.DW else NONE
    if index is None:
        return memory(opcode, dst, base, disp, rex)
    return indexed(opcode, dst, base, index, disp, rex or PLAIN)


@cache
def store(size: int, base: int, src: int, disp: int, *, index: int | None = None) -> bytes:
    """``*(base + index + disp) = src``."""
    opcode = b"\x88" if size == Size.B else b"\x89"
    rex = WIDE if size == Size.DW else NONE
    if size == Size.B and src >= 4:
        rex = PLAIN  # without REX these would be ah to bh
    prefix = b"\x66" if size == Size.H else b""
    if index is None:
        return memory(opcode, src, base, disp, rex, prefix)
    return indexed(opcode, src, base, index, disp, rex or PLAIN, prefix)


@cache
def store_immediate(size: int, base: int, value: int, disp: int, *, index: int | None = None) -> bytes:
    """``*(base + index + disp) = value``; 64-bit stores sign-extend 32 bits."""
    opcode = b"\xc6" if size == Size.B else b"\xc7"
    rex = WIDE if size == Size.DW else NONE
    prefix = b"\x66" if size == Size.H else b""
    width = {Size.B: 1, Size.H: 2}.get(Size(size), 4)
    immediate = imm32(value)[:width]
    if index is None:
        return memory(opcode, 0, base, disp, rex, prefix) + immediate
    return indexed(opcode, 0, base, index, disp, rex or PLAIN, prefix) + immediate


@cache
def atomic(op: int, size: int, base: int, src: int, disp: int, *, lock: bool = True, index: int | None = None) -> bytes:
    """One locked instruction on ``*(base + index + disp)``."""
    if op == Atomic.FETCH_ADD:
        opcode = b"\x0f\xc1"  # xadd
    elif op == Atomic.XCHG:
        opcode = b"\x87"
    elif op == Atomic.CMPXCHG:
        opcode = b"\x0f\xb1"
    else:
        opcode = operation_opcode(op)
    rex = WIDE if size == Size.DW else NONE
    prefix = b"\xf0" if lock else b""
    if index is None:
        return memory(opcode, src, base, disp, rex, prefix)
    return indexed(opcode, src, base, index, disp, rex or PLAIN, prefix)


def needs_loop(op: int) -> bool:
    """True if no single instruction does the atomic operation and returns the old value."""
    return op in _FETCHES_BY_LOOP


@cache
def fetch_by_loop(op: int, size: int, base: int, src: int, disp: int) -> bytes:
    """``src = *(base + disp)``, which becomes ``old op src``: cmpxchg, repeated until no other write intervenes.

    cmpxchg uses rax, so r10 saves eBPF's r0 and replaces it as an operand.
    """
    wide = size == Size.DW
    operand = R10 if src == RAX else src
    pointer = R10 if base == RAX else base
    body = load(size, RAX, pointer, disp)
    body += mov(R11, RAX, wide)
    body += reg_reg(operation_opcode(op & 0xF0), R11, operand, WIDE if wide else NONE)  # op r11, src
    body += atomic(Atomic.CMPXCHG, size, pointer, R11, disp)
    again = b"\x75" + imm8(-len(body) - 2)  # jne again
    return mov(R10, RAX) + body + again + mov(operand, RAX, wide) + mov(RAX, R10)


@cache
def check_by_carry(dst: int, base: int, disp: int, user_limit: int) -> bytes:
    """Check before a load of 6.1 that may fault: not a kernel address sets ``dst = 0`` and skips the load.

    First the base is compared with the limit, then base + offset must not pass 2**64: one spare register is not enough
    to compare the sum. The caller fills in the last byte, the distance past the load.
    """
    limit = user_limit + abs(disp)
    first = short(0xB8, R11, WIDE) + limit.to_bytes(8, "little")  # movabs r11, limit
    first += reg_reg(b"\x39", base, R11, WIDE)  # cmp base, r11
    second = mov(R11, base)
    second += alu_imm32(0, R11, disp)  # add r11, disp
    clear = reg_reg(b"\x31", dst, dst) + b"\xeb\x00"  # xor dst, dst; jmp past the load
    second += b"\x73" + imm8(len(clear))  # jnc to the load
    return first + b"\x72" + imm8(len(second)) + second + clear  # jb to the xor


@cache
def check_by_range(dst: int, base: int, disp: int, user_limit: int) -> bytes:
    """Check before a load that may fault: a user address or the vsyscall page sets ``dst = 0`` and skips the load.

    The caller fills in the last byte, the distance past the load.
    """
    code = mov_imm64(R10, _VSYSCALL_ADDR, sign_extended=True)
    code += mov(R11, base)
    if disp:
        code += alu_imm32(0, R11, disp)  # add r11, disp
    code += reg_reg(b"\x29", R11, R10, WIDE)  # sub r11, r10
    code += mov_imm64(R10, user_limit - _VSYSCALL_ADDR + (1 << 64), sign_extended=True)
    code += reg_reg(b"\x39", R11, R10, WIDE)  # cmp r11, r10
    clear = reg_reg(b"\x31", dst, dst) + b"\xeb\x00"  # xor dst, dst; jmp past the load
    return code + b"\x77" + imm8(len(clear)) + clear  # ja to the load


# Offsets of struct pt_regs, in the order of the processor's register numbers.
PT_REGS = {
    RAX: 0x50,
    7: 0x70,  # rdi
    6: 0x68,  # rsi
    RDX: 0x60,
    1: 0x58,  # rcx
    8: 0x48,
    RBX: 0x28,
    13: 0x10,
    14: 0x08,
    15: 0x00,
}
"""Offset in struct pt_regs of the registers that a faulting load clears."""
