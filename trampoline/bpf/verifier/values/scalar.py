"""A partly known number in a register: its bits, and its range as each of four kinds of integer."""

from typing import NamedTuple

from trampoline.bpf.verifier.values.tnum import U32, U64, UNKNOWN, Tnum

S64_MIN, S64_MAX = -(1 << 63), (1 << 63) - 1
S32_MIN, S32_MAX = -(1 << 31), (1 << 31) - 1


def s64(number: int) -> int:
    """The low 64 bits as a signed number."""
    return ((number & U64) ^ (1 << 63)) - (1 << 63)


def s32(number: int) -> int:
    """The low 32 bits as a signed number."""
    return ((number & U32) ^ (1 << 31)) - (1 << 31)


class Scalar(NamedTuple):
    """Known bits and inclusive bounds of 64 bits, unsigned and signed, and the same of the low 32 bits. Immutable."""

    bits: Tnum
    umin: int
    umax: int
    smin: int
    smax: int
    u32_min: int
    u32_max: int
    s32_min: int
    s32_max: int

    @property
    def is_const(self) -> bool:
        """True if it is one known number (``tnum_is_const``)."""
        return not self.bits.mask

    @property
    def value(self) -> int:
        """Its known bits as an unsigned number; the number itself if ``is_const``."""
        return self.bits.value

    @property
    def signed(self) -> int:
        """The same as a signed number."""
        return s64(self.bits.value)

    @property
    def is_unknown(self) -> bool:
        """True if nothing is known about it."""
        return self == UNKNOWN_SCALAR

    def __str__(self) -> str:
        return describe(self)


def known(number: int) -> Scalar:
    """Exactly this number; only the low 64 bits are used."""
    low = number & U64
    low32 = number & U32
    signed, signed32 = (low ^ 1 << 63) - (1 << 63), (low32 ^ 1 << 31) - (1 << 31)
    return Scalar(Tnum(low, 0), low, low, signed, signed, low32, low32, signed32, signed32)


def unknown() -> Scalar:
    """Any number."""
    return UNKNOWN_SCALAR


UNKNOWN_SCALAR = Scalar(UNKNOWN, 0, U64, S64_MIN, S64_MAX, 0, U32, S32_MIN, S32_MAX)
ZERO = known(0)


def _number(value: int) -> str:
    """A bound as in the kernel's log: small ones decimal, others hexadecimal."""
    return str(value) if -0xFFFF <= value <= 0xFFFF else hex(value & U64)


def describe(scalar: Scalar) -> str:
    """``scalar(umax=255,var_off=(0x0; 0xff))`` as in the log: trivial bounds are omitted."""
    if scalar.is_const:
        return str(scalar.signed)
    bounds = (
        ("smin", scalar.smin, S64_MIN),
        ("smax", scalar.smax, S64_MAX),
        ("umin", scalar.umin, 0),
        ("umax", scalar.umax, U64),
        ("smin32", scalar.s32_min, S32_MIN),
        ("smax32", scalar.s32_max, S32_MAX),
        ("umin32", scalar.u32_min, 0),
        ("umax32", scalar.u32_max, U32),
    )
    parts: dict[int, list[str]] = {}
    for name, value, limit in bounds:
        if value != limit:
            parts.setdefault(value, []).append(name)
    shown = [f"{'='.join(names)}={_number(value)}" for value, names in parts.items()]
    if scalar.bits != UNKNOWN:
        shown.append(f"var_off={scalar.bits}")
    return f"scalar({','.join(shown)})"
