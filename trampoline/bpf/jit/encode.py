"""Machine code of x86_64 from its parts: prefixes, opcode, ModRM, SIB, displacement.

Registers are the processor's numbers. Every function returns the bytes of one instruction and is pure.
"""

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
REGISTER_NAMES = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))

WIDE = 0x48
"""REX.W: 64-bit operands."""
PLAIN = 0x40
"""REX without W, for the instructions that always have one."""
NONE = 0
"""REX only if a register requires it."""


def fits8(value: int) -> bool:
    """True if a number fits a sign-extended byte."""
    return -0x80 <= value < 0x80


def imm8(value: int) -> bytes:
    """A byte; numbers are taken modulo 256."""
    return (value & 0xFF).to_bytes()


def imm32(value: int) -> bytes:
    """Four bytes, little endian; numbers are taken modulo 2**32."""
    return (value & 0xFFFFFFFF).to_bytes(4, "little")


# REX:  0100 W R X B     W 64-bit operands, R extends ModRM.reg, X SIB.index, B ModRM.rm or SIB.base
def _rex(base: int, reg: int, rm: int, index: int = 0) -> bytes:
    extended = (reg >> 3) << 2 | (index >> 3) << 1 | rm >> 3
    if base or extended:
        return (base | PLAIN | extended).to_bytes()
    return b""


def reg_reg(opcode: bytes, rm: int, reg: int, rex: int = NONE) -> bytes:
    """``op rm, reg`` between registers; ``reg`` may be the opcode's extension (0 to 7)."""
    return _rex(rex, reg, rm) + opcode + (0xC0 | (reg & 7) << 3 | rm & 7).to_bytes()


def short(opcode: int, reg: int, rex: int = NONE) -> bytes:
    """``op reg`` with the register in the opcode's low bits."""
    return _rex(rex, 0, reg) + (opcode + (reg & 7)).to_bytes()


def memory(opcode: bytes, reg: int, base: int, disp: int, rex: int = NONE, prefix: bytes = b"") -> bytes:
    """``op reg, [base + disp]``; the displacement takes one byte if possible, and is never omitted."""
    mod = 0x40 if fits8(disp) else 0x80
    sib = b"\x24" if base & 7 == RSP else b""
    where = (mod | (reg & 7) << 3 | base & 7).to_bytes() + sib
    return prefix + _rex(rex, reg, base) + opcode + where + (imm8(disp) if mod == 0x40 else imm32(disp))


def indexed(opcode: bytes, reg: int, base: int, index: int, disp: int, rex: int = PLAIN, prefix: bytes = b"") -> bytes:
    """``op reg, [base + index + disp]``."""
    mod = 0x44 if fits8(disp) else 0x84
    where = bytes((mod | (reg & 7) << 3, (index & 7) << 3 | base & 7))
    return prefix + _rex(rex, reg, base, index) + opcode + where + (imm8(disp) if mod == 0x44 else imm32(disp))


def mov(dst: int, src: int, wide: bool = True) -> bytes:
    """``mov dst, src``; empty for a 64-bit move onto itself."""
    if wide and dst == src:
        return b""
    return reg_reg(b"\x89", dst, src, WIDE if wide else NONE)


def mov_imm32(dst: int, value: int, *, sign_extended: bool) -> bytes:
    """A 32-bit constant: ``mov r64, imm32`` if negative and sign-extended, ``xor`` for 0, otherwise ``mov r32, imm32``.
    """
    if sign_extended and value & 0x80000000:
        return reg_reg(b"\xc7", dst, 0, WIDE) + imm32(value)
    if not value & 0xFFFFFFFF:
        return reg_reg(b"\x31", dst, dst)
    return short(0xB8, dst) + imm32(value)


def mov_imm64(dst: int, value: int, *, sign_extended: bool) -> bytes:
    """A 64-bit constant (0 to 2**64 - 1) in its shortest form; ``sign_extended``: ``mov r64, imm32`` is allowed."""
    if value < 1 << 32:
        return mov_imm32(dst, value, sign_extended=False)
    if sign_extended and value >= (1 << 64) - (1 << 31):
        return mov_imm32(dst, value & 0xFFFFFFFF, sign_extended=True)
    return short(0xB8, dst, WIDE) + value.to_bytes(8, "little")


def alu_imm(extension: int, accumulator: int, dst: int, value: int, wide: bool) -> bytes:
    """``op dst, imm``: with one byte if it fits, in rax's own form, or with four bytes."""
    rex = WIDE if wide else NONE
    if fits8(value):
        return reg_reg(b"\x83", dst, extension, rex) + imm8(value)
    if dst == RAX:
        return _rex(rex, 0, 0) + accumulator.to_bytes() + imm32(value)
    return reg_reg(b"\x81", dst, extension, rex) + imm32(value)


def alu_imm32(extension: int, dst: int, value: int, wide: bool = True) -> bytes:
    """``op dst, imm`` always with four bytes."""
    return reg_reg(b"\x81", dst, extension, WIDE if wide else NONE) + imm32(value)


# VEX, three bytes:  C4   R X B mmmmm   W vvvv L pp      R X B and vvvv are inverted
def shift_by_register(pp: int, dst: int, count: int, wide: bool) -> bytes:
    """BMI2's ``shlx``, ``shrx`` or ``sarx`` ``dst, dst, count``, selected by ``pp``."""
    high = dst >> 3
    first = (1 - high) << 7 | 1 << 6 | (1 - high) << 5 | 2
    second = (0x80 if wide else 0) | (~count & 15) << 3 | pp
    return bytes((0xC4, first, second, 0xF7, 0xC0 | (dst & 7) << 3 | dst & 7))


def push(reg: int) -> bytes:
    """``push reg``."""
    return short(0x50, reg)


def pop(reg: int) -> bytes:
    """``pop reg``."""
    return short(0x58, reg)
