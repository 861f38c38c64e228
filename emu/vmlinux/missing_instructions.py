"""Instructions that kernels use and Unicorn's CPU lacks: what each does here, and its length."""

from collections.abc import Callable
from typing import Final

from unicorn import x86_const as x86
from unicorn.unicorn_py3.arch.intel import UcIntel

_NUMBERED: Final = tuple(
    getattr(x86, f"UC_X86_REG_{name}")
    for name in ("RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", *(f"R{number}" for number in range(8, 16)))
)


def _operand_length(code: bytes, at: int) -> int:
    """Bytes of ModRM, SIB and displacement that begin at ``code[at]``."""
    mod, rm = code[at] >> 6, code[at] & 7
    length = 1
    if mod != 3 and rm == 4:
        length += 1
        if mod == 0 and code[at + 1] & 7 == 5:
            return length + 4
    if mod == 0 and rm == 5:
        return length + 4
    return length + (0, 1, 4, 0)[mod]


def emulate(uc: UcIntel, code: bytes, cpu: int, flush: Callable[[], None]) -> int:
    """Do what the instruction at the start of ``code`` does; gives its length in bytes, 0 for one that is unknown.

    ``cpu``: the number that RDPID gives. ``flush`` forgets the engine's translations of addresses.
    """
    at, rex = 0, 0
    prefixes = set()
    while code[at] in (0x66, 0xF2, 0xF3, 0x2E, 0x3E, 0x26, 0x36, 0x64, 0x65, 0x67):
        prefixes.add(code[at])
        at += 1
    if code[at] & 0xF0 == 0x40:
        rex = code[at]
        at += 1
    if code[at : at + 3] == b"\x0f\x38\x82" and 0x66 in prefixes:  # INVPCID
        flush()
        return at + 3 + _operand_length(code, at + 3)
    if code[at : at + 2] == b"\x0f\x01" and code[at + 2] in (0xCA, 0xCB):  # CLAC, STAC: no SMAP in this CPU
        return at + 3
    if code[at : at + 3] == b"\x0f\x01\xe8":  # SERIALIZE
        return at + 3
    if code[at : at + 2] == b"\x0f\xc7" and 0xF3 in prefixes and code[at + 2] >> 3 == 0x1F:  # RDPID
        uc.reg_write(_NUMBERED[code[at + 2] & 7 | (rex & 1) << 3], cpu)
        return at + 3
    if code[at : at + 2] == b"\x0f\x0d" or (code[at : at + 2] == b"\x0f\x18"):  # PREFETCHW and its like
        return at + 2 + _operand_length(code, at + 2)
    return 0


TRAPPING_UD: Final = (b"\x0f\x0b", b"\x0f\xb9", b"\x0f\xff")
"""UD2, UD1, UD0 without their prefixes."""
