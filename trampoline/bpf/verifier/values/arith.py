"""Arithmetic on partly known numbers (``adjust_scalar_min_max_vals`` and its callees).

Every result contains the machine's result for any values of the operands. Its tightness differs by release, because a
tighter one would accept programs that the kernel refuses: see ``Tightness``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.verifier.values import tnum
from trampoline.bpf.verifier.values.bounds import Bounds, Sync
from trampoline.bpf.verifier.values.scalar import UNKNOWN_SCALAR, Scalar, known
from trampoline.bpf.verifier.values.tnum import U32, U64, Tnum


@dataclass(frozen=True, slots=True)
class Tightness:
    """Precision of a release's arithmetic."""

    sync: Sync
    needs_known_source: frozenset[int]
    """Operations with an unknown result unless the second operand is constant (all but add, sub and and: 6.1)."""
    extends_unknown: bool = False
    """Division by, or too wide a shift by, a constant is unknown in the low half and zero above (6.1)."""
    keeps_double_overflow: bool = False
    """Bounds of a sum that always overflows are kept (6.17)."""
    signed_products: bool = False
    """Bounds of products with negative numbers are computed (6.14)."""
    casts_bitwise: bool = True
    """Signed bounds of and, or, xor follow from the unsigned ones if these don't cross the sign (6.10)."""
    divides: bool = False
    """Division and remainder by a constant are computed (7.0)."""
    negates: bool = False
    """NEG is computed as 0 - x (6.18)."""
    swaps: bool = False
    """Byte swaps are computed on known bits (7.0)."""


class _Range(NamedTuple):
    """Bounds for one width."""

    umin: int
    umax: int
    smin: int
    smax: int


class _Width:
    """Width of 64 or 32 bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.full = (1 << bits) - 1
        self.half = 1 << (bits - 1)
        self.smin, self.smax = -self.half, self.half - 1
        self.unknown = _Range(0, self.full, self.smin, self.smax)

    def signed(self, number: int) -> int:
        """The number as signed, in this width."""
        return ((number & self.full) ^ self.half) - self.half

    def fits(self, low: int, high: int) -> bool:
        """True if both are signed numbers of this width."""
        return self.smin <= low and high <= self.smax


_W64, _W32 = _Width(64), _Width(32)


def _add(w: _Width, a: _Range, b: _Range, _bits: Tnum, how: Tightness) -> _Range:
    umin, umax = a.umin + b.umin, a.umax + b.umax
    if umax > w.full:
        if how.keeps_double_overflow and umin > w.full:
            umin, umax = umin & w.full, umax & w.full
        else:
            umin, umax = 0, w.full
    return _Range(umin, umax, *_signed_pair(w, a.smin + b.smin, a.smax + b.smax, how))


def _sub(w: _Width, a: _Range, b: _Range, _bits: Tnum, how: Tightness) -> _Range:
    umin, umax = a.umin - b.umax, a.umax - b.umin
    if umin < 0:
        if how.keeps_double_overflow and umax < 0:
            umin, umax = umin & w.full, umax & w.full
        else:
            umin, umax = 0, w.full
    return _Range(umin, umax, *_signed_pair(w, a.smin - b.smax, a.smax - b.smin, how))


def _signed_pair(w: _Width, low: int, high: int, how: Tightness) -> tuple[int, int]:
    if w.fits(low, high):
        return low, high
    if how.keeps_double_overflow and (high < w.smin or low > w.smax):
        return w.signed(low), w.signed(high)
    return w.smin, w.smax


def _mul(w: _Width, a: _Range, b: _Range, _bits: Tnum, how: Tightness) -> _Range:
    if how.signed_products:
        umin, umax = a.umin * b.umin, a.umax * b.umax
        if umax > w.full:
            umin, umax = 0, w.full
        corners = (a.smin * b.smin, a.smin * b.smax, a.smax * b.smin, a.smax * b.smax)
        low, high = min(corners), max(corners)
        return _Range(umin, umax, low, high) if w.fits(low, high) else _Range(umin, umax, w.smin, w.smax)
    half_full = (1 << w.bits // 2) - 1
    if a.smin < 0 or b.smin < 0 or a.umax > half_full or b.umax > half_full:
        return w.unknown
    umin, umax = a.umin * b.umin, a.umax * b.umax
    if umax > w.smax:
        return _Range(umin, umax, w.smin, w.smax)
    return _Range(umin, umax, umin, umax)


def _bitwise(w: _Width, a: _Range, b: _Range, umin: int, umax: int, how: Tightness) -> _Range:
    same_sign = w.signed(umin) <= w.signed(umax) if how.casts_bitwise else a.smin >= 0 and b.smin >= 0
    if same_sign:
        return _Range(umin, umax, w.signed(umin), w.signed(umax))
    return _Range(umin, umax, w.smin, w.smax)


def _and(w: _Width, a: _Range, b: _Range, bits: Tnum, how: Tightness) -> _Range:
    return _bitwise(w, a, b, bits.value & w.full, min(a.umax, b.umax), how)


def _or(w: _Width, a: _Range, b: _Range, bits: Tnum, how: Tightness) -> _Range:
    return _bitwise(w, a, b, max(a.umin, b.umin), (bits.value | bits.mask) & w.full, how)


def _xor(w: _Width, a: _Range, b: _Range, bits: Tnum, how: Tightness) -> _Range:
    return _bitwise(w, a, b, bits.value & w.full, (bits.value | bits.mask) & w.full, how)


_RangeOp = Callable[[_Width, _Range, _Range, Tnum, Tightness], _Range]
_OPS: dict[int, tuple[_RangeOp, Callable[[Tnum, Tnum], Tnum]]] = {
    Alu.ADD: (_add, tnum.add),
    Alu.SUB: (_sub, tnum.sub),
    Alu.MUL: (_mul, tnum.mul),
    Alu.AND: (_and, tnum.and_),
    Alu.OR: (_or, tnum.or_),
    Alu.XOR: (_xor, tnum.xor),
}
_MASK = {
    Alu.ADD: lambda a, b: a + b,
    Alu.SUB: lambda a, b: a - b,
    Alu.MUL: lambda a, b: a * b,
    Alu.AND: lambda a, b: a & b,
    Alu.OR: lambda a, b: a | b,
    Alu.XOR: lambda a, b: a ^ b,
}


def _range64(s: Scalar) -> _Range:
    return _Range(s.umin, s.umax, s.smin, s.smax)


def _range32(s: Scalar) -> _Range:
    return _Range(s.u32_min, s.u32_max, s.s32_min, s.s32_max)


def binary(op: int, a: Scalar, b: Scalar, is32: bool, how: Tightness) -> Scalar:
    """``a op b`` for an ALU operation other than MOV, NEG and END, including unsigned division (see ``divided``).

    For 32 bits the upper half of the result is zero.
    """
    if a.is_const and b.is_const and op in _MASK:
        result = _MASK[Alu(op)](a.bits.value, b.bits.value)
        return known(result & U32 if is32 else result)
    if _inconsistent(b, is32):
        return UNKNOWN_SCALAR
    source_known = not (b.bits.mask & U32 if is32 else b.bits.mask)
    if op in how.needs_known_source and not source_known:
        return UNKNOWN_SCALAR
    if op in _OPS:
        return _ranged(op, a, b, is32, how)
    if op in (Alu.LSH, Alu.RSH, Alu.ARSH) and source_known and b.umax < (32 if is32 else 64):
        return _shifted(op, a, b.u32_min if is32 else b.umin, is32, how)
    return _not_computed(source_known, is32, how)


def _inconsistent(b: Scalar, is32: bool) -> bool:
    """True for bounds that no number satisfies, from a path that is never taken."""
    if is32:
        if not b.bits.mask & U32 and (b.s32_min != b.s32_max or b.u32_min != b.u32_max):
            return True
        return b.s32_min > b.s32_max or b.u32_min > b.u32_max
    if not b.bits.mask and (b.smin != b.smax or b.umin != b.umax):
        return True
    return b.smin > b.smax or b.umin > b.umax


def _not_computed(source_known: bool, is32: bool, how: Tightness) -> Scalar:
    """Result of an operation that the kernel does not compute: unknown in all 64 bits, also for a 32-bit operation.

    ``adjust_scalar_min_max_vals()`` returns after ``__mark_reg_unknown()``, before ``zext_32_to_64()``.
    """
    return low32(UNKNOWN_SCALAR, how) if is32 and source_known and how.extends_unknown else UNKNOWN_SCALAR


def low32(a: Scalar, how: Tightness) -> Scalar:
    """The low half, zero-extended (``zext_32_to_64``)."""
    if a.is_const:
        return known(a.bits.value & U32)
    b = Bounds(a)
    b.zero_extend()
    return how.sync(b)


def _ranged(op: int, a: Scalar, b: Scalar, is32: bool, how: Tightness) -> Scalar:
    range_op, bits_op = _OPS[op]
    out = Bounds()
    out.bits = bits_op(a.bits, b.bits)
    out.u32_min, out.u32_max, out.s32_min, out.s32_max = range_op(_W32, _range32(a), _range32(b), out.bits, how)
    if is32:
        out.zero_extend()
    else:
        out.umin, out.umax, out.smin, out.smax = range_op(_W64, _range64(a), _range64(b), out.bits, how)
    return how.sync(out)


def _shifted(op: int, a: Scalar, shift: int, is32: bool, how: Tightness) -> Scalar:
    out = Bounds()
    if is32:
        low = Tnum(a.bits.value & U32, a.bits.mask & U32)
        if op == Alu.LSH:
            out.bits = tnum.cast(tnum.lshift(low, shift), 4)
            if a.u32_max << shift <= U32:
                out.u32_min, out.u32_max = a.u32_min << shift, a.u32_max << shift
        elif op == Alu.RSH:
            out.bits = tnum.rshift(low, shift)
            out.u32_min, out.u32_max = a.u32_min >> shift, a.u32_max >> shift
        else:
            out.bits = tnum.arshift(low, shift, 32)
            out.s32_min, out.s32_max = a.s32_min >> shift, a.s32_max >> shift
        out.zero_extend()
        # The known bits are more precise than zero-extended bounds of another width.
        out.smin, out.smax = 0, U32
        out.umin, out.umax = out.u32_min, out.u32_max
        return how.sync(out)
    if op == Alu.LSH:
        out.bits = tnum.lshift(a.bits, shift)
        if a.umax << shift <= 1 << 63:
            out.umin, out.umax = a.umin << shift, a.umax << shift
        if shift == 32:  # half of a sign extension: << 32, s>> 32
            if a.s32_max >= 0:
                out.smax = a.s32_max << 32
            if a.s32_min >= 0:
                out.smin = a.s32_min << 32
        if shift < 32 and a.u32_max << shift <= U32:
            out.u32_min, out.u32_max = a.u32_min << shift, a.u32_max << shift
    elif op == Alu.RSH:
        out.bits = tnum.rshift(a.bits, shift)
        out.umin, out.umax = a.umin >> shift, a.umax >> shift
    else:
        out.bits = tnum.arshift(a.bits, shift, 64)
        out.smin, out.smax = a.smin >> shift, a.smax >> shift
    return how.sync(out)


def divided(op: int, a: Scalar, b: Scalar, is32: bool, signed: bool, how: Tightness) -> Scalar:
    """``a / b`` or ``a % b``; by 0 the quotient is 0 and the remainder ``a`` (``scalar_min_max_udiv()`` and others)."""
    width = _W32 if is32 else _W64
    source_known = not b.bits.mask & width.full
    if not how.divides or not source_known:
        return _not_computed(source_known, is32, how)
    divisor = b.bits.value & width.full
    unchanged = low32(a, how) if is32 else a
    if not divisor:
        return known(0) if op == Alu.DIV else unchanged
    values = _range32(a) if is32 else _range64(a)
    out = Bounds()
    if signed:
        low, high = values.smin, values.smax
        by = width.signed(divisor)
        limit = abs(by) - 1
        if op == Alu.DIV:
            if low == width.smin and by == -1:  # the smallest number stays itself
                high = low if high == low else width.smax
            else:
                low, high = sorted((_truncated(low, by), _truncated(high, by)))
        elif low >= -limit and high <= limit:
            return unchanged
        elif low >= 0:
            low, high = 0, min(high, limit)
        elif high <= 0:
            low, high = max(low, -limit), 0
        else:
            low, high = -limit, limit
        if is32:
            out.s32_min, out.s32_max = low, high
            if (low < 0) == (high < 0):
                out.u32_min, out.u32_max = low & U32, high & U32
        else:
            out.smin, out.smax = low, high
    else:
        low, high = values.umin // divisor, values.umax // divisor
        if op == Alu.MOD:
            if values.umax < divisor:
                return unchanged
            low, high = 0, divisor - 1
        if is32:
            out.u32_min, out.u32_max = low, high
        else:
            out.umin, out.umax = low, high
    if is32:
        out.zero_extend()
    return how.sync(out)


def _truncated(number: int, divisor: int) -> int:
    """The quotient as in C, rounded towards 0."""
    quotient = abs(number) // abs(divisor)
    return quotient if (number < 0) == (divisor < 0) else -quotient


def negated(a: Scalar, is32: bool, how: Tightness) -> Scalar:
    """``-a``."""
    return binary(Alu.SUB, known(0), a, is32, how) if how.negates else UNKNOWN_SCALAR


def swapped(a: Scalar, width: int, how: Tightness, *, swap: bool) -> Scalar:
    """The low ``width`` bits, with bytes reversed if ``swap``, zeros above."""
    if not how.swaps:
        return UNKNOWN_SCALAR
    size = width // 8
    order: Literal["big", "little"] = "big" if swap else "little"

    def turned(word: int) -> int:
        return int.from_bytes((word & (1 << width) - 1).to_bytes(size, "little"), order)

    out = Bounds()
    out.bits = Tnum(turned(a.bits.value), turned(a.bits.mask))
    return how.sync(out)


def sign_extended(a: Scalar, size: int, is32: bool, how: Tightness) -> Scalar:
    """The low ``size`` bytes sign-extended, to 32 bits with zeros above or to 64 (``coerce_reg_to_size_sx``)."""
    bits = 8 * size
    half, full = 1 << (bits - 1), (1 << bits) - 1

    def extended(number: int) -> int:
        return ((number & full) ^ half) - half

    if a.is_const:
        number = extended(a.bits.value)
        return known(number & U32 if is32 else number)
    out = Bounds()
    low, high = (a.s32_min, a.s32_max) if is32 else (a.smin, a.smax)
    if low >> bits == high >> bits and extended(low) <= extended(high):
        low, high = extended(low), extended(high)
    else:
        low, high = -half, half - 1
    # Known bits below the sign are kept; the sign is known if its bit is, and fills the bits above.
    value, mask = a.bits.value & full, a.bits.mask & full
    above = U64 & ~full
    if mask & half:
        out.bits = Tnum(value, mask | above)
    else:
        out.bits = Tnum(value | (above if value & half else 0), mask)
    if is32:
        out.s32_min, out.s32_max = low, high
        out.bits = tnum.cast(out.bits, 4)
        out.u32_min, out.u32_max = (low & U32, high & U32) if (low < 0) == (high < 0) else (0, U32)
        out.assign_low()
    else:
        out.smin, out.smax = low, high
        if bits == 32 or (out.smin >= -(1 << 31) and out.smax < 1 << 31):
            out.s32_min, out.s32_max = low, high
    return how.sync(out)
