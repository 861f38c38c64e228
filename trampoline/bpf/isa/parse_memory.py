"""Parser of loads, stores and atomic operations. All functions raise BytecodeSyntaxError."""

import re

from trampoline.bpf.isa.insn import Atomic, Cls, Insn, Mode, Size
from trampoline.bpf.isa.text import ATOMIC_SIGNS, FETCH_NAMES
from trampoline.bpf.isa.tokens import BpfRegister, Token, TokenLine

_LOCKED = {sign: op for op, sign in ATOMIC_SIGNS.items()}
_FETCH = {name: op for op, name in FETCH_NAMES.items()}
_EXCHANGE = re.compile(r"(cmp)?xchg(_64|32_32)")
_KERNEL_ATOMIC = re.compile(r"atomic(?:64)?_(cmpxchg|xchg|fetch_\w+)")
ACCESS = re.compile(r"([us])(8|16|32|64)")
_SIZES = {size.bits: size for size in Size}


def _type(line: TokenLine) -> tuple[bool, Size]:
    """Parse (u32 *): True if signed, and the size."""
    line.want("(")
    match = ACCESS.fullmatch(line.next.text)
    if not match:
        raise line.fail("a type (u8 to u64, s8 to s32)")
    line.any()
    line.want("*", ")")
    return match[1] == "s", _SIZES[int(match[2])]


def _address(line: TokenLine) -> tuple[int, int]:
    """Parse r1 +8: register and offset."""
    base = line.register(wide=True).number
    return base, line.integer(-0x8000, 0x7FFF, "an offset") if line.next.text in ("+", "-") else 0


def _pointer(line: TokenLine) -> tuple[Size, int, int]:
    """Parse (u32 *)(r1 +8): size, register, offset."""
    start = line.next
    signed, size = _type(line)
    if signed:
        raise line.fail("a type without a sign", start)
    line.want("(")
    base, off = _address(line)
    line.want(")")
    return size, base, off


def _value(line: TokenLine, size: Size, same: int | None = None) -> int:
    """Parse a register read or written with this size; r is accepted below 64 bits, as in the kernel's log."""
    return line.register(wide=True if size == Size.DW else None, same=same).number


def load(line: TokenLine, start: Token, dst: BpfRegister) -> Insn:
    """Parse a load after its ``*``."""
    kind = line.next
    signed, size = _type(line)
    if not dst.wide and (signed or size == Size.DW):
        raise line.fail("a register (r)", start)
    if not line.at("skb"):
        line.want("(")
        base, off = _address(line)
        line.want(")")
        return Insn(Cls.LDX | (Mode.MEMSX if signed else Mode.MEM) | size, dst.number, base, off)
    if signed or dst.number:
        raise line.fail("an unsigned load into r0", kind if signed else start)
    line.want("skb", "[")
    if not line.at_register():
        insn = Insn(Cls.LD | Mode.ABS | size, imm=line.imm())
    else:
        base = line.register(wide=True).number
        if line.at("+", "-"):
            line.any()
        insn = Insn(Cls.LD | Mode.IND | size, src=base, imm=0 if line.at("]") else line.imm())
    line.want("]")
    return insn


def store(line: TokenLine) -> Insn:
    """Parse a store, a locked operation, or a store_release, from its first word."""
    word = line.any()
    if word.text == "store_release":
        line.want("(")
        size, base, off = _pointer(line)
        line.want(",")
        src = _value(line, size)
        line.want(")")
        return Insn(Cls.STX | Mode.ATOMIC | size, base, src, off, Atomic.STORE_REL)
    if word.text == "lock":
        line.want("*")
        size, base, off = _pointer(line)
        if line.next.text not in _LOCKED:
            raise line.fail("+=, |=, &= or ^=")
        return Insn(Cls.STX | Mode.ATOMIC | size, base, imm=_LOCKED[line.any().text], off=off, src=_value(line, size))
    size, base, off = _pointer(line)
    line.want("=")
    if line.at_register():
        return Insn(Cls.STX | Mode.MEM | size, base, _value(line, size), off)
    return Insn(Cls.ST | Mode.MEM | size, base, 0, off, line.operand())


def atomic(line: TokenLine, name: Token, start: Token, dst: BpfRegister) -> Insn:
    """Parse an atomic operation with a result: its address and operands, in brackets."""
    kernel = _KERNEL_ATOMIC.fullmatch(name.text)
    llvm = _EXCHANGE.fullmatch(name.text)
    if kernel and kernel[1] in ("xchg", "cmpxchg"):
        operation = Atomic[kernel[1].upper()]
    elif kernel and f"atomic_{kernel[1]}" in _FETCH:
        operation = _FETCH[f"atomic_{kernel[1]}"]
    elif llvm:
        operation = Atomic.CMPXCHG if llvm[1] else Atomic.XCHG
    elif name.text == "load_acquire":
        operation = Atomic.LOAD_ACQ
    else:
        raise line.fail("an operation", name)
    line.want("(")
    if llvm:
        size = Size.DW if llvm[2] == "_64" else Size.W
        base, off = _address(line)
    else:
        size, base, off = _pointer(line)
    if size == Size.DW and not dst.wide:
        raise line.fail("a register (r)", start)
    code = Cls.STX | Mode.ATOMIC | size
    if operation == Atomic.LOAD_ACQ:
        line.want(")")
        return Insn(code, dst.number, base, off, operation)
    line.want(",")
    if operation == Atomic.CMPXCHG:
        if dst.number:
            raise line.fail("r0 or w0", start)
        _value(line, size, same=0)
        line.want(",")
        src = _value(line, size)
    else:
        src = _value(line, size, same=dst.number)
    line.want(")")
    return Insn(code, base, src, off, operation)
