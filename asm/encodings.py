"""The kernel's own byte sequences: those that an assembler can't make, or would choose otherwise."""

from __future__ import annotations

import struct
from types import MappingProxyType

from asm.errors import DisplacementError

MASK = (1 << 64) - 1
"""Addresses and numbers are 64 bits wide."""

# arch/x86/include/asm/nops.h: x86_nops[], the 64-bit ones.
NOPS = MappingProxyType(
    {
        1: bytes.fromhex("90"),
        2: bytes.fromhex("6690"),
        3: bytes.fromhex("0f1f00"),
        4: bytes.fromhex("0f1f4000"),
        5: bytes.fromhex("0f1f440000"),
        6: bytes.fromhex("660f1f440000"),
        7: bytes.fromhex("0f1f8000000000"),
        8: bytes.fromhex("0f1f840000000000"),
        # Since 6.5 (ASM_NOP_MAX 11 on 64-bit kernels).
        9: bytes.fromhex("2e0f1f840000000000"),
        10: bytes.fromhex("662e0f1f840000000000"),
        11: bytes.fromhex("66662e0f1f840000000000"),
    }
)
NOP5 = NOPS[5]
LONGEST_NOP = 8

ENDBR64 = bytes.fromhex("f30f1efa")
INT3 = b"\xcc"

# The condition codes, with the names that disassemblers print, in the order of their opcodes.
CONDITIONS = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
CONDITION_ALIASES = MappingProxyType(
    {
        "c": "b",
        "nae": "b",
        "nb": "ae",
        "nc": "ae",
        "z": "e",
        "nz": "ne",
        "na": "be",
        "nbe": "a",
        "pe": "p",
        "po": "np",
        "nge": "l",
        "nl": "ge",
        "ng": "le",
        "nle": "g",
    }
)
_CONDITION_CODES = {name: code for code, name in enumerate(CONDITIONS)}
_CONDITION_CODES.update({alias: _CONDITION_CODES[name] for alias, name in CONDITION_ALIASES.items()})


def emit_nops(size: int, longest: int = LONGEST_NOP) -> bytes:
    """`size` bytes of nops as emit_nops() of the BPF JIT fills them: as many of the longest as fit, then the rest."""
    if size < 0:
        raise ValueError(f"a filler of {size} bytes")
    full, rest = divmod(size, longest)
    return NOPS[longest] * full + (NOPS[rest] if rest else b"")


def displacement(after: int, target: int, bits: int, at: int) -> int:
    """The signed distance from `after` (the next instruction) to `target`, modulo 2**64, or DisplacementError."""
    half = 1 << (bits - 1)
    distance = ((target - after + (1 << 63)) & MASK) - (1 << 63)
    if not -half <= distance < half:
        raise DisplacementError(at & MASK, target & MASK, bits)
    return distance


def _rel32(opcode: bytes, at: int, target: int) -> bytes:
    return opcode + struct.pack("<i", displacement(at + len(opcode) + 4, target, 32, at))


def _rel8(opcode: bytes, at: int, target: int) -> bytes:
    return opcode + struct.pack("<b", displacement(at + len(opcode) + 1, target, 8, at))


def call_rel32(at: int, target: int) -> bytes:
    """`call target` placed at `at`: e8 rel32, 5 bytes."""
    return _rel32(b"\xe8", at, target)


def jmp_rel32(at: int, target: int) -> bytes:
    """`jmp target` placed at `at`: e9 rel32, 5 bytes."""
    return _rel32(b"\xe9", at, target)


def jmp_rel8(at: int, target: int) -> bytes:
    """`jmp target` placed at `at`: eb rel8, 2 bytes."""
    return _rel8(b"\xeb", at, target)


def condition_code(cc: str) -> int:
    """The four bits of a condition's opcodes, for a name or alias such as `ne` or `nz`. KeyError if there is none."""
    return _CONDITION_CODES[cc]


def jcc_rel32(cc: str, at: int, target: int) -> bytes:
    """`jcc target` placed at `at`: 0f 8x rel32, 6 bytes."""
    return _rel32(bytes((0x0F, 0x80 | _CONDITION_CODES[cc])), at, target)


def jcc_rel8(cc: str, at: int, target: int) -> bytes:
    """`jcc target` placed at `at`: 7x rel8, 2 bytes."""
    return _rel8(bytes((0x70 | _CONDITION_CODES[cc],)), at, target)


CALL_DEPTH_ACCOUNT_SIZE = 9


def call_depth_account(at: int, gs_offset: int) -> bytes:
    """`sar qword ptr gs:[rip + gs_offset], 5` placed at `at`, 9 bytes.

    That is how x86_call_depth_emit_accounting() of 6.12 and later counts a call; `gs_offset` is the counter's
    per-CPU offset, which the next instruction's address plus the sign-extended disp32 must give modulo 2**64.
    """
    distance = displacement(at + CALL_DEPTH_ACCOUNT_SIZE, gs_offset, 32, at)
    return b"\x65\x48\xc1\x3d" + struct.pack("<i", distance) + b"\x05"
