"""How the kinds of knowledge of one number tighten each other (``reg_bounds_sync``), as releases do it."""

from collections.abc import Callable

from trampoline.verifier.scalar import (
    S32_MAX,
    S32_MIN,
    S64_MAX,
    S64_MIN,
    UNKNOWN_SCALAR,
    Scalar,
    known,
    s32,
    s64,
)
from trampoline.verifier.tnum import U32, U64, Tnum, intersect, tnum_range

_HIGH = U64 ^ U32


class Bounds:
    """A scalar that is being worked on: the same fields, each changed alone. ``Sync`` makes it consistent."""

    __slots__ = ("bits", "s32_max", "s32_min", "smax", "smin", "u32_max", "u32_min", "umax", "umin")

    def __init__(self, scalar: Scalar = UNKNOWN_SCALAR) -> None:
        self.bits = scalar.bits
        self.umin, self.umax = scalar.umin, scalar.umax
        self.smin, self.smax = scalar.smin, scalar.smax
        self.u32_min, self.u32_max = scalar.u32_min, scalar.u32_max
        self.s32_min, self.s32_max = scalar.s32_min, scalar.s32_max

    def frozen(self) -> Scalar:
        """As it stands."""
        return Scalar(
            self.bits,
            self.umin,
            self.umax,
            self.smin,
            self.smax,
            self.u32_min,
            self.u32_max,
            self.s32_min,
            self.s32_max,
        )

    @property
    def broken(self) -> bool:
        """Whether no number fits all bounds."""
        return (
            self.umin > self.umax or self.smin > self.smax or self.u32_min > self.u32_max or self.s32_min > self.s32_max
        )

    def forget64(self) -> None:
        """Nothing is known of the 64-bit bounds."""
        self.umin, self.umax, self.smin, self.smax = 0, U64, S64_MIN, S64_MAX

    def forget32(self) -> None:
        """Nothing is known of the 32-bit bounds."""
        self.u32_min, self.u32_max, self.s32_min, self.s32_max = 0, U32, S32_MIN, S32_MAX

    def zero_extend(self) -> None:
        """The upper half is zero: the 64-bit bounds follow from the 32-bit ones (``zext_32_to_64``)."""
        value, mask = self.bits
        self.bits = Tnum(value & U32, mask & U32)
        self.assign_low()

    def assign_low(self) -> None:
        """The 64-bit bounds of a number whose upper half is zero (``__reg_assign_32_into_64``)."""
        self.umin, self.umax = self.u32_min, self.u32_max
        if self.s32_min >= 0:
            self.smin, self.smax = self.s32_min, self.s32_max
        else:
            self.smin, self.smax = 0, U32

    def from_bits(self) -> None:
        """Bounds that the known bits imply (``__update_reg_bounds``)."""
        value, mask = self.bits
        top = value | mask
        self.umin = max(self.umin, value)
        self.umax = min(self.umax, top)
        sign = 1 << 63
        self.smin = max(self.smin, s64(value | (mask & sign)))
        self.smax = min(self.smax, s64(value | (mask & (sign - 1))))
        low_value, low_mask = value & U32, mask & U32
        self.u32_min = max(self.u32_min, low_value)
        self.u32_max = min(self.u32_max, low_value | low_mask)
        sign = 1 << 31
        self.s32_min = max(self.s32_min, s32(low_value | (low_mask & sign)))
        self.s32_max = min(self.s32_max, s32(low_value | (low_mask & (sign - 1))))

    def to_bits(self) -> None:
        """Known bits that the unsigned bounds imply (``__reg_bound_offset``)."""
        if self.umin <= self.umax:
            bits = intersect(self.bits, tnum_range(self.umin, self.umax))
        else:
            bits = self.bits
        if self.u32_min <= self.u32_max:
            low = intersect(Tnum(bits.value & U32, bits.mask & U32), tnum_range(self.u32_min, self.u32_max))
            bits = Tnum(bits.value & _HIGH | low.value & U32, bits.mask & _HIGH | low.mask & U32)
        self.bits = bits


Sync = Callable[[Bounds], Scalar]
"""Makes bounds consistent with each other, and gives the scalar."""


def sync_by_sign(b: Bounds) -> Scalar:
    """As up to 6.7: 64-bit bounds among each other, and 32-bit ones, where the sign is known."""
    if not b.bits.mask:
        return known(b.bits.value)
    b.from_bits()
    b.smin, b.smax, b.umin, b.umax = _by_sign(b.smin, b.smax, b.umin, b.umax, 63)
    b.s32_min, b.s32_max, b.u32_min, b.u32_max = _by_sign(b.s32_min, b.s32_max, b.u32_min, b.u32_max, 31)
    b.to_bits()
    b.from_bits()
    return b.frozen()


def _by_sign(smin: int, smax: int, umin: int, umax: int, top: int) -> tuple[int, int, int, int]:
    full = (2 << top) - 1
    half = 1 << top
    if smin >= 0 or smax < 0:
        umin = max(smin & full, umin)
        umax = min(smax & full, umax)
        return _signed(umin, half), _signed(umax, half), umin, umax
    if umax < half:
        umax = min(smax & full, umax)
        return umin, umax, umin, umax
    if umin >= half:
        umin = max(smin & full, umin)
        return _signed(umin, half), _signed(umax, half), umin, umax
    return smin, smax, umin, umax


def _signed(number: int, half: int) -> int:
    return number - 2 * half if number >= half else number


def sync_mixed(b: Bounds) -> Scalar:
    """As since 6.8: all kinds of bounds tighten each other (``__reg_deduce_bounds`` twice)."""
    if not b.bits.mask:
        return known(b.bits.value)
    b.from_bits()
    for _ in range(2):
        _deduce32(b)
        _deduce64(b)
        _deduce_halves(b)
    b.to_bits()
    b.from_bits()
    return b.frozen()


def _deduce32(b: Bounds) -> None:
    if b.umin >> 32 == b.umax >> 32:
        low, high = b.umin & U32, b.umax & U32
        b.u32_min, b.u32_max = max(b.u32_min, low), min(b.u32_max, high)
        if s32(low) <= s32(high):
            b.s32_min, b.s32_max = max(b.s32_min, s32(low)), min(b.s32_max, s32(high))
    if b.smin >> 32 == b.smax >> 32:
        low, high = b.smin & U32, b.smax & U32
        if low <= high:
            b.u32_min, b.u32_max = max(b.u32_min, low), min(b.u32_max, high)
        if s32(low) <= s32(high):
            b.s32_min, b.s32_max = max(b.s32_min, s32(low)), min(b.s32_max, s32(high))
    # The upper halves are neighbours around zero: the lower ones run from negative to positive.
    if (b.umin >> 32) + 1 & U32 == b.umax >> 32 and s32(b.umin) < 0 <= s32(b.umax):
        b.s32_min, b.s32_max = max(b.s32_min, s32(b.umin)), min(b.s32_max, s32(b.umax))
    if (b.smin >> 32) + 1 == b.smax >> 32 and s32(b.smin) < 0 <= s32(b.smax):
        b.s32_min, b.s32_max = max(b.s32_min, s32(b.smin)), min(b.s32_max, s32(b.smax))
    if s32(b.u32_min) <= s32(b.u32_max):
        b.s32_min, b.s32_max = max(b.s32_min, s32(b.u32_min)), min(b.s32_max, s32(b.u32_max))
    if b.s32_min & U32 <= b.s32_max & U32:
        b.u32_min, b.u32_max = max(b.s32_min & U32, b.u32_min), min(b.s32_max & U32, b.u32_max)


def _deduce64(b: Bounds) -> None:
    if s64(b.umin) <= s64(b.umax):
        b.smin, b.smax = max(b.smin, s64(b.umin)), min(b.smax, s64(b.umax))
    if b.smin & U64 <= b.smax & U64:
        b.umin, b.umax = max(b.smin & U64, b.umin), min(b.smax & U64, b.umax)


def _deduce_halves(b: Bounds) -> None:
    """64-bit bounds whose lower halves are outside the 32-bit ones move inwards (``__reg_deduce_mixed_bounds``)."""
    low, high = b.umin & _HIGH | b.u32_min, b.umax & _HIGH | b.u32_max
    b.umin, b.umax = max(b.umin, low), min(b.umax, high)
    slow = s64(b.smin & U64 & _HIGH | b.u32_min)
    shigh = s64(b.smax & U64 & _HIGH | b.u32_max)
    b.smin, b.smax = max(b.smin, slow), min(b.smax, shigh)
    # A number that fits int and is not negative as one is what its lower half says.
    if b.s32_min >= 0 and b.smin >= S32_MIN and b.smax <= S32_MAX:
        b.smin, b.smax = b.s32_min, b.s32_max
        b.umin, b.umax = b.s32_min, b.s32_max
        if b.smin <= b.smax:
            b.bits = intersect(b.bits, tnum_range(b.smin, b.smax))


def truncated(scalar: Scalar, size: int, sync: Sync) -> Scalar:
    """The low ``size`` bytes, zeros above (``coerce_reg_to_size``)."""
    if size >= 8:
        return scalar
    full = (1 << 8 * size) - 1
    b = Bounds(scalar)
    value, mask = scalar.bits
    b.bits = Tnum(value & full, mask & full)
    if not b.bits.mask:
        return known(b.bits.value)
    if scalar.umin & ~full == scalar.umax & ~full:
        b.umin, b.umax = scalar.umin & full, scalar.umax & full
    else:
        b.umin, b.umax = 0, full
    b.smin, b.smax = s64(b.umin), s64(b.umax)
    if size < 4:
        b.forget32()
    return sync(b)
