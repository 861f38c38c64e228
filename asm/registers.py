"""Registers of statements, by width and use."""

from __future__ import annotations

_NUMBERED = tuple(f"r{number}" for number in range(8, 16))

REGISTERS_64 = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *_NUMBERED)
REGISTERS_32 = ("eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", *(f"{name}d" for name in _NUMBERED))
REGISTERS_16 = ("ax", "cx", "dx", "bx", "sp", "bp", "si", "di", *(f"{name}w" for name in _NUMBERED))
REGISTERS_8 = (
    *("al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil", "ah", "ch", "dh", "bh"),
    *(f"{name}b" for name in _NUMBERED),
)
SEGMENTS = ("es", "cs", "ss", "ds", "fs", "gs")

# Numbers in ModRM and opcodes.
NUMBER_64 = {name: number for number, name in enumerate(REGISTERS_64)}
NUMBER_32 = {name: number for number, name in enumerate(REGISTERS_32)}

# Bits of the general registers.
WIDTHS = {
    **dict.fromkeys(REGISTERS_64, 64),
    **dict.fromkeys(REGISTERS_32, 32),
    **dict.fromkeys(REGISTERS_16, 16),
    **dict.fromkeys(REGISTERS_8, 8),
}

HIGH_BYTES = frozenset({"ah", "ch", "dh", "bh"})
# Registers that take a REX prefix as operands, which makes the high bytes unreachable.
REX_OPERANDS = frozenset(
    (
        *REGISTERS_64,
        *("spl", "bpl", "sil", "dil", "cr8"),
        *(f"{name}{suffix}" for name in _NUMBERED for suffix in "dwb"),
        *(f"{kind}{number}" for kind in ("xmm", "ymm") for number in range(8, 16)),
    )
)

OPERANDS = frozenset(
    (
        *WIDTHS,
        *SEGMENTS,
        *("cr0", "cr2", "cr3", "cr4", "cr8"),
        *("dr0", "dr1", "dr2", "dr3", "dr6", "dr7"),
        *(f"mm{number}" for number in range(8)),
        *(f"xmm{number}" for number in range(16)),
        *(f"ymm{number}" for number in range(16)),
    )
)

# Names of registers that are not operands of their own, and never symbols.
RESERVED = OPERANDS | {"rip", "eip", "ip", "riz", "eiz", "rflags", "eflags", "flags", "st"}
