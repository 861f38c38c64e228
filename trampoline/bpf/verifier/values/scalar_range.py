"""Numbers within a known range."""

from trampoline.bpf.verifier.values.scalar import S32_MAX, S32_MIN, S64_MAX, S64_MIN, Scalar, known
from trampoline.bpf.verifier.values.tnum import U32, U64, UNKNOWN, tnum_range


def signed_range(low: int, high: int) -> Scalar:
    """Any 64-bit number from ``low`` to ``high``, inclusive."""
    if low == high:
        return known(low)
    narrow = low >= S32_MIN and high <= S32_MAX
    s32_min, s32_max = (low, high) if narrow else (S32_MIN, S32_MAX)
    if low < 0 <= high:
        return Scalar(UNKNOWN, 0, U64, low, high, 0, U32, s32_min, s32_max)
    umin, umax = low & U64, high & U64
    u32 = (low & U32, high & U32) if narrow else (0, U32)
    return Scalar(tnum_range(umin, umax), umin, umax, low, high, *u32, s32_min, s32_max)


def signed32_range(low: int, high: int) -> Scalar:
    """Any result from ``low`` to ``high`` of a function that returns an int (``__mark_reg_s32_range``)."""
    return signed_range(max(low, S32_MIN), min(high, S32_MAX))


def from_error(high: int) -> Scalar:
    """A negative error number, or 0 to ``high`` (``do_refine_retval_range``)."""
    return signed_range(-4095, high) if high <= S64_MAX else signed_range(-4095, S64_MAX)


ANY = (S64_MIN, S64_MAX)
