"""Tracked numbers: known and unknown bits of a 64-bit value (kernel/bpf/tnum.c).

Bits of ``value`` where ``mask`` is 0 are known; ``value & mask`` is always 0. Every operation's result contains all
results for any values of its operands.
"""

from typing import NamedTuple

U64 = (1 << 64) - 1
U32 = (1 << 32) - 1


class Tnum(NamedTuple):
    """Known bits and unknown ones."""

    value: int
    mask: int

    @property
    def is_const(self) -> bool:
        """True if it has only one value."""
        return not self.mask

    def __str__(self) -> str:
        return f"({self.value:#x}; {self.mask:#x})"

    def holds(self, number: int) -> bool:
        """True if it may be this number (0 to 2**64 - 1)."""
        return (number & ~self.mask) & U64 == self.value


UNKNOWN = Tnum(0, U64)


def tnum_range(low: int, high: int) -> Tnum:
    """The narrowest one that contains all of ``low`` to ``high``, both unsigned."""
    bits = (low ^ high).bit_length()
    if bits > 63:
        return UNKNOWN
    delta = (1 << bits) - 1
    return Tnum(low & ~delta, delta)


def add(a: Tnum, b: Tnum) -> Tnum:
    """Sum modulo 2**64."""
    low = a.value + b.value
    chi = (low + a.mask + b.mask) ^ low
    mask = (chi | a.mask | b.mask) & U64
    return Tnum(low & ~mask & U64, mask)


def sub(a: Tnum, b: Tnum) -> Tnum:
    """Difference modulo 2**64."""
    difference = a.value - b.value
    chi = (difference + a.mask) ^ (difference - b.mask)
    mask = (chi | a.mask | b.mask) & U64
    return Tnum(difference & ~mask & U64, mask)


def and_(a: Tnum, b: Tnum) -> Tnum:
    """Bitwise and."""
    value = a.value & b.value
    return Tnum(value, (a.value | a.mask) & (b.value | b.mask) & ~value)


def or_(a: Tnum, b: Tnum) -> Tnum:
    """Bitwise or."""
    value = a.value | b.value
    return Tnum(value, (a.mask | b.mask) & ~value)


def xor(a: Tnum, b: Tnum) -> Tnum:
    """Bitwise exclusive or."""
    mask = a.mask | b.mask
    return Tnum((a.value ^ b.value) & ~mask, mask)


def mul(a: Tnum, b: Tnum) -> Tnum:
    """Product modulo 2**64: known parts are multiplied, each unknown bit of ``a`` adds the possible values of ``b``."""
    known = Tnum(a.value * b.value & U64, 0)
    unknown = Tnum(0, 0)
    value, mask = a.value, a.mask
    b_value, b_mask = b
    while value or mask:
        if value & 1:
            unknown = add(unknown, Tnum(0, b_mask))
        elif mask & 1:
            unknown = add(unknown, Tnum(0, b_value | b_mask))
        value >>= 1
        mask >>= 1
        b_value = b_value << 1 & U64
        b_mask = b_mask << 1 & U64
    return add(known, unknown)


def lshift(a: Tnum, shift: int) -> Tnum:
    """Shifted left by a known number of bits."""
    return Tnum(a.value << shift & U64, a.mask << shift & U64)


def rshift(a: Tnum, shift: int) -> Tnum:
    """Shifted right by a known number of bits, filled with zeros."""
    return Tnum(a.value >> shift, a.mask >> shift)


def arshift(a: Tnum, shift: int, bits: int) -> Tnum:
    """Arithmetic shift right of a 32- or 64-bit number; for 32 bits the upper half of the result is zero."""
    full = (1 << bits) - 1
    sign = 1 << (bits - 1)

    def shifted(word: int) -> int:
        word &= full
        return ((word ^ sign) - sign >> shift) & full

    mask = shifted(a.mask)
    return Tnum(shifted(a.value) & ~mask, mask)


def intersect(a: Tnum, b: Tnum) -> Tnum:
    """The intersection of two descriptions of the same number."""
    mask = a.mask & b.mask
    return Tnum((a.value | b.value) & ~mask, mask)


def contains(outer: Tnum, inner: Tnum) -> bool:
    """True if every value of ``inner`` is a value of ``outer``."""
    return not (inner.mask & ~outer.mask) and inner.value & ~outer.mask == outer.value


def cast(a: Tnum, size: int) -> Tnum:
    """The low ``size`` bytes, zeros above."""
    full = (1 << 8 * size) - 1
    return Tnum(a.value & full, a.mask & full)


def is_aligned(a: Tnum, size: int) -> bool:
    """True if it is always a multiple of ``size``, a power of two."""
    return not size or not ((a.value | a.mask) & (size - 1))
