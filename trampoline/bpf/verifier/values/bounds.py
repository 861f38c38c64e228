"""Mutual tightening of the bounds and known bits of one number (``reg_bounds_sync``), by release."""

from collections.abc import Callable

from trampoline.bpf.verifier.values.scalar import (
    S32_MAX,
    S32_MIN,
    S64_MAX,
    S64_MIN,
    UNKNOWN_SCALAR,
    Scalar,
    known,
    s64,
)
from trampoline.bpf.verifier.values.tnum import U32, U64, Tnum, intersect, tnum_range

_HIGH = U64 ^ U32
_SIGN32, _SIGN64 = 1 << 31, 1 << 63


class Bounds:
    """A mutable scalar: the same fields, each changed separately. ``Sync`` makes it consistent."""

    __slots__ = ("bits", "s32_max", "s32_min", "smax", "smin", "u32_max", "u32_min", "umax", "umin")

    def __init__(self, scalar: Scalar = UNKNOWN_SCALAR) -> None:
        self.bits = scalar.bits
        self.umin, self.umax = scalar.umin, scalar.umax
        self.smin, self.smax = scalar.smin, scalar.smax
        self.u32_min, self.u32_max = scalar.u32_min, scalar.u32_max
        self.s32_min, self.s32_max = scalar.s32_min, scalar.s32_max

    def frozen(self) -> Scalar:
        """The current fields as a scalar."""
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
        """True if no number satisfies all bounds."""
        return (
            self.umin > self.umax or self.smin > self.smax or self.u32_min > self.u32_max or self.s32_min > self.s32_max
        )

    def forget64(self) -> None:
        """Make the 64-bit bounds unknown."""
        self.umin, self.umax, self.smin, self.smax = 0, U64, S64_MIN, S64_MAX

    def forget32(self) -> None:
        """Make the 32-bit bounds unknown."""
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
        """Tighten bounds by the known bits (``__update_reg_bounds``)."""
        value, mask = self.bits
        if mask == U64:
            return
        top = value | mask
        if value > self.umin:
            self.umin = value
        if top < self.umax:
            self.umax = top
        low = value | (mask & _SIGN64)
        low -= (low & _SIGN64) << 1
        top = value | (mask & ~_SIGN64)
        top -= (top & _SIGN64) << 1
        if low > self.smin:
            self.smin = low
        if top < self.smax:
            self.smax = top
        value, mask = value & U32, mask & U32
        if mask == U32:
            return
        top = value | mask
        if value > self.u32_min:
            self.u32_min = value
        if top < self.u32_max:
            self.u32_max = top
        low = value | (mask & _SIGN32)
        low -= (low & _SIGN32) << 1
        top = value | (mask & ~_SIGN32)
        top -= (top & _SIGN32) << 1
        if low > self.s32_min:
            self.s32_min = low
        if top < self.s32_max:
            self.s32_max = top

    def to_bits(self) -> None:
        """Add known bits implied by the unsigned bounds (``__reg_bound_offset``)."""
        bits = intersect(self.bits, tnum_range(self.umin, self.umax)) if self.umin <= self.umax else self.bits
        if self.u32_min <= self.u32_max:
            low = intersect(Tnum(bits.value & U32, bits.mask & U32), tnum_range(self.u32_min, self.u32_max))
            bits = Tnum(bits.value & _HIGH | low.value & U32, bits.mask & _HIGH | low.mask & U32)
        self.bits = bits


Sync = Callable[[Bounds], Scalar]
"""Makes bounds consistent with each other, and returns the scalar."""


def sync_by_sign(b: Bounds) -> Scalar:
    """Up to 6.7: signed and unsigned bounds of the same width tighten each other if the sign is known."""
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
    """Since 6.8: all kinds of bounds tighten each other (``__reg_deduce_bounds``), twice at most."""
    if not b.bits.mask:
        return known(b.bits.value)
    b.from_bits()
    for _ in range(2):
        before = (b.umin, b.umax, b.smin, b.smax, b.u32_min, b.u32_max, b.s32_min, b.s32_max)
        _deduce32(b)
        _deduce64(b)
        _deduce_halves(b)
        if before == (b.umin, b.umax, b.smin, b.smax, b.u32_min, b.u32_max, b.s32_min, b.s32_max):
            break
    b.to_bits()
    if not b.bits.mask:
        return known(b.bits.value)
    b.from_bits()
    return b.frozen()


def _deduce32(b: Bounds) -> None:
    umin, umax, smin, smax = b.umin, b.umax, b.smin, b.smax
    u32_min, u32_max, s32_min, s32_max = b.u32_min, b.u32_max, b.s32_min, b.s32_max
    low_umin, low_umax = ((umin & U32) ^ _SIGN32) - _SIGN32, ((umax & U32) ^ _SIGN32) - _SIGN32
    low_smin, low_smax = ((smin & U32) ^ _SIGN32) - _SIGN32, ((smax & U32) ^ _SIGN32) - _SIGN32
    high, next_high = umin >> 32, umax >> 32
    if high == next_high:
        u32_min, u32_max = max(u32_min, umin & U32), min(u32_max, umax & U32)
        if low_umin <= low_umax:
            s32_min, s32_max = max(s32_min, low_umin), min(s32_max, low_umax)
    # The upper halves are adjacent around zero: the lower ones range from negative to positive.
    elif high + 1 & U32 == next_high and low_umin < 0 <= low_umax:
        s32_min, s32_max = max(s32_min, low_umin), min(s32_max, low_umax)
    high, next_high = smin >> 32, smax >> 32
    if high == next_high:
        low, top = smin & U32, smax & U32
        if low <= top:
            u32_min, u32_max = max(u32_min, low), min(u32_max, top)
        if low_smin <= low_smax:
            s32_min, s32_max = max(s32_min, low_smin), min(s32_max, low_smax)
    elif high + 1 == next_high and low_smin < 0 <= low_smax:
        s32_min, s32_max = max(s32_min, low_smin), min(s32_max, low_smax)
    low, top = ((u32_min & U32) ^ _SIGN32) - _SIGN32, ((u32_max & U32) ^ _SIGN32) - _SIGN32
    if low <= top:
        s32_min, s32_max = max(s32_min, low), min(s32_max, top)
    low, top = s32_min & U32, s32_max & U32
    if low <= top:
        u32_min, u32_max = max(low, u32_min), min(top, u32_max)
    b.u32_min, b.u32_max, b.s32_min, b.s32_max = u32_min, u32_max, s32_min, s32_max


def _deduce64(b: Bounds) -> None:
    low, top = ((b.umin & U64) ^ _SIGN64) - _SIGN64, ((b.umax & U64) ^ _SIGN64) - _SIGN64
    if low <= top:
        b.smin, b.smax = max(b.smin, low), min(b.smax, top)
    low, top = b.smin & U64, b.smax & U64
    if low <= top:
        b.umin, b.umax = max(low, b.umin), min(top, b.umax)


def _deduce_halves(b: Bounds) -> None:
    """Move 64-bit bounds inwards if their lower halves are outside the 32-bit ones (``__reg_deduce_mixed_bounds``)."""
    u32_min, u32_max = b.u32_min, b.u32_max
    if u32_min or u32_max != U32:
        b.umin = max(b.umin, b.umin & _HIGH | u32_min)
        b.umax = min(b.umax, b.umax & _HIGH | u32_max)
        b.smin = max(b.smin, (b.smin >> 32 << 32) + u32_min)
        b.smax = min(b.smax, (b.smax >> 32 << 32) + u32_max)
    # A number within int whose lower half is not negative equals its lower half.
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
