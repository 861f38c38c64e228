"""Conditional jumps on numbers: decided jumps, and facts about the operands on either side.

``Taken`` and ``Refine`` have two versions: up to 6.7 one operand must be constant; later any two ranges are compared
(``is_branch_taken``, ``reg_set_min_max`` of kernel/bpf/verifier.c).
"""

from collections.abc import Callable

from trampoline.bpf.isa.insn import Jmp
from trampoline.bpf.verifier.values import tnum
from trampoline.bpf.verifier.values.bounds import Bounds, Sync
from trampoline.bpf.verifier.values.scalar import Scalar, known, s32, s64
from trampoline.bpf.verifier.values.tnum import U32, U64, Tnum

FLIPPED: dict[int, int] = {
    Jmp.JEQ: Jmp.JEQ,
    Jmp.JNE: Jmp.JNE,
    Jmp.JSET: Jmp.JSET,
    Jmp.JGE: Jmp.JLE,
    Jmp.JGT: Jmp.JLT,
    Jmp.JLE: Jmp.JGE,
    Jmp.JLT: Jmp.JGT,
    Jmp.JSGE: Jmp.JSLE,
    Jmp.JSGT: Jmp.JSLT,
    Jmp.JSLE: Jmp.JSGE,
    Jmp.JSLT: Jmp.JSGT,
}
"""The equivalent comparison with exchanged operands."""

_NOT_SET = -1  # the opposite of JSET, which no jump instruction has
NEGATED: dict[int, int] = {
    Jmp.JEQ: Jmp.JNE,
    Jmp.JNE: Jmp.JEQ,
    Jmp.JSET: _NOT_SET,
    Jmp.JGE: Jmp.JLT,
    Jmp.JGT: Jmp.JLE,
    Jmp.JLE: Jmp.JGT,
    Jmp.JLT: Jmp.JGE,
    Jmp.JSGE: Jmp.JSLT,
    Jmp.JSGT: Jmp.JSLE,
    Jmp.JSLE: Jmp.JSGT,
    Jmp.JSLT: Jmp.JSGE,
}
"""The comparison that holds if the jump is not taken."""

Taken = Callable[[int, Scalar, Scalar, bool], "bool | None"]
"""(op, left, right, is32): True if the jump is always taken, False if never; None if undecided."""
Refined = tuple[Scalar, Scalar]
Refine = Callable[[int, Scalar, Scalar, bool, Sync], Refined]
"""(op, left, right, is32, sync): both operands under the condition ``op``."""


def _compare_constants(op: int, a: int, b: int, is32: bool) -> bool:
    full = U32 if is32 else U64
    a &= full
    b &= full
    if op in (Jmp.JSGE, Jmp.JSGT, Jmp.JSLE, Jmp.JSLT):
        signed = s32 if is32 else s64
        a, b = signed(a), signed(b)
    if op == Jmp.JEQ:
        return a == b
    if op == Jmp.JNE:
        return a != b
    if op == Jmp.JSET:
        return bool(a & b)
    if op in (Jmp.JGT, Jmp.JSGT):
        return a > b
    if op in (Jmp.JGE, Jmp.JSGE):
        return a >= b
    if op in (Jmp.JLT, Jmp.JSLT):
        return a < b
    return a <= b


def _bits(s: Scalar, is32: bool) -> Tnum:
    return Tnum(s.bits.value & U32, s.bits.mask & U32) if is32 else s.bits


def _ordered(op: int, a: Scalar, b: Scalar, is32: bool) -> bool | None:
    """Order comparisons by the bounds of both operands."""
    if op in (Jmp.JLT, Jmp.JLE, Jmp.JSLT, Jmp.JSLE):
        return _ordered(FLIPPED[op], b, a, is32)
    if op in (Jmp.JGT, Jmp.JGE):
        a_min, a_max = (a.u32_min, a.u32_max) if is32 else (a.umin, a.umax)
        b_min, b_max = (b.u32_min, b.u32_max) if is32 else (b.umin, b.umax)
    else:
        a_min, a_max = (a.s32_min, a.s32_max) if is32 else (a.smin, a.smax)
        b_min, b_max = (b.s32_min, b.s32_max) if is32 else (b.smin, b.smax)
    if op in (Jmp.JGT, Jmp.JSGT):
        return True if a_min > b_max else False if a_max <= b_min else None
    return True if a_min >= b_max else False if a_max < b_min else None


def _bit_test(a: Tnum, constant: int) -> bool | None:
    if a.value & constant:
        return True
    return None if (a.value | a.mask) & constant else False


def taken_by_constant(op: int, a: Scalar, b: Scalar, is32: bool) -> bool | None:
    """As in 6.1: decided only if the right operand is constant; ranges do not exclude equality."""
    left, right = _bits(a, is32), _bits(b, is32)
    if right.mask:
        return None
    if not left.mask:
        return _compare_constants(op, left.value, right.value, is32)
    if op == Jmp.JSET:
        return _bit_test(left, right.value)
    if op in (Jmp.JEQ, Jmp.JNE):
        return None
    return _ordered(op, a, known(s32(right.value)) if is32 else b, is32)


def taken_by_range(op: int, a: Scalar, b: Scalar, is32: bool) -> bool | None:
    """Since 6.8 (``is_scalar_branch_taken``)."""
    left, right = _bits(a, is32), _bits(b, is32)
    if not left.mask and not right.mask:
        return _compare_constants(op, left.value, right.value, is32)
    if op == Jmp.JSET:
        if right.mask:
            left, right = right, left
        return None if right.mask else _bit_test(left, right.value)
    if op in (Jmp.JEQ, Jmp.JNE):
        return (op == Jmp.JNE) if _disjoint(a, b, is32) else None
    return _ordered(op, a, b, is32)


def _disjoint(a: Scalar, b: Scalar, is32: bool) -> bool:
    if a.u32_min > b.u32_max or a.u32_max < b.u32_min or a.s32_min > b.s32_max or a.s32_max < b.s32_min:
        return True
    return not is32 and (a.umin > b.umax or a.umax < b.umin or a.smin > b.smax or a.smax < b.smin)


def refine_by_constant(op: int, a: Scalar, b: Scalar, is32: bool, sync: Sync) -> Refined:
    """As in 6.1: one side is refined by a constant other side; for two unknown sides only by equality."""
    if _bits(b, is32).mask:
        if not _bits(a, is32).mask:
            flipped = op if op == _NOT_SET else FLIPPED[op]
            right, left = refine_by_constant(flipped, b, a, is32, sync)
            return left, right
        if op == Jmp.JEQ and not is32:
            both = _merged(a, b, sync)
            return both, both
        return a, b
    out = Bounds(a)
    value = _bits(b, is32).value
    if op == Jmp.JEQ:
        if not is32:
            return known(value), b
        out.u32_min = out.u32_max = value
        out.s32_min = out.s32_max = s32(value)
        out.bits = Tnum(out.bits.value & ~U32 | value, out.bits.mask & ~U32)
    elif op in (Jmp.JSET, _NOT_SET):
        _refine_bits(op, out, value, is32)
    elif op != Jmp.JNE:
        _below_or_above(op, out, value, is32)
    else:
        return a, b
    return _spread_old(out, is32, sync), b


def _spread_old(out: Bounds, is32: bool, sync: Sync) -> Scalar:
    """Propagate bounds between the widths (``__reg_combine_32_into_64``, ``__reg_combine_64_into_32``)."""
    if is32:
        if not (out.bits.value | out.bits.mask) >> 32:
            out.assign_low()
        else:
            out.forget64()
        return sync(out)
    out.forget32()
    if -(1 << 31) <= out.smin <= out.smax < 1 << 31:
        out.s32_min, out.s32_max = out.smin, out.smax
    if out.umax <= U32:
        out.u32_min, out.u32_max = out.umin, out.umax
    return sync(out)


def _refine_bits(op: int, out: Bounds, constant: int, is32: bool) -> None:
    value, mask = out.bits
    if op == _NOT_SET:
        keep = ~constant if not is32 else ~(constant & U32)
        out.bits = Tnum(value & keep & U64, mask & keep & U64)
    elif constant and not constant & (constant - 1):
        out.bits = Tnum(value | constant, mask & ~constant)


def _below_or_above(op: int, out: Bounds, value: int, is32: bool) -> None:
    """Cut the bounds at a known number."""
    is_signed = op in (Jmp.JSGT, Jmp.JSGE, Jmp.JSLT, Jmp.JSLE)
    at_least = op in (Jmp.JGT, Jmp.JGE, Jmp.JSGT, Jmp.JSGE)
    known = value if not is_signed else s32(value) if is32 else s64(value)
    limit = known + (op in (Jmp.JGT, Jmp.JSGT)) - (op in (Jmp.JLT, Jmp.JSLT))
    bound = f"{'s' if is_signed else 'u'}{'32_' if is32 else ''}{'min' if at_least else 'max'}"
    setattr(out, bound, (max if at_least else min)(getattr(out, bound), limit))


def _merged(a: Scalar, b: Scalar, sync: Sync) -> Scalar:
    """The intersection of two scalars for the same number."""
    out = Bounds(a)
    out.umin, out.umax = max(a.umin, b.umin), min(a.umax, b.umax)
    out.smin, out.smax = max(a.smin, b.smin), min(a.smax, b.smax)
    out.u32_min, out.u32_max = max(a.u32_min, b.u32_min), min(a.u32_max, b.u32_max)
    out.s32_min, out.s32_max = max(a.s32_min, b.s32_min), min(a.s32_max, b.s32_max)
    out.bits = tnum.intersect(a.bits, b.bits)
    return sync(out)


def refine_by_range(op: int, a: Scalar, b: Scalar, is32: bool, sync: Sync) -> Refined:
    """Since 6.8: both sides are refined (``regs_refine_cond_op``). A contradiction makes them unknown."""
    if op in (Jmp.JGE, Jmp.JGT, Jmp.JSGE, Jmp.JSGT):
        right, left = refine_by_range(FLIPPED[op], b, a, is32, sync)
        return left, right
    left_out, right_out = Bounds(a), Bounds(b)
    if op == Jmp.JEQ:
        _equal(left_out, right_out, is32)
    elif op in (Jmp.JSET, _NOT_SET):
        if _bits(b, is32).mask:
            left_out, right_out, b = right_out, left_out, a
        constant = _bits(b, is32)
        if not constant.mask:
            _refine_bits(op, left_out, constant.value, is32)
        if b is a:
            left_out, right_out = right_out, left_out
    elif op == Jmp.JNE:
        if not _bits(b, is32).mask:
            _not_equal(left_out, _bits(b, is32).value, is32)
        elif not _bits(a, is32).mask:
            _not_equal(right_out, _bits(a, is32).value, is32)
    else:
        _less(op, left_out, right_out, is32)
    return _sound(left_out, sync), _sound(right_out, sync)


def _sound(out: Bounds, sync: Sync) -> Scalar:
    result = sync(out)
    if result.umin > result.umax or result.smin > result.smax:
        return Bounds().frozen()
    if result.u32_min > result.u32_max or result.s32_min > result.s32_max:
        return Bounds().frozen()
    return result


def _equal(a: Bounds, b: Bounds, is32: bool) -> None:
    a.u32_min = b.u32_min = max(a.u32_min, b.u32_min)
    a.u32_max = b.u32_max = min(a.u32_max, b.u32_max)
    a.s32_min = b.s32_min = max(a.s32_min, b.s32_min)
    a.s32_max = b.s32_max = min(a.s32_max, b.s32_max)
    if is32:
        low = tnum.intersect(tnum.cast(a.bits, 4), tnum.cast(b.bits, 4))
        for side in (a, b):
            side.bits = Tnum(side.bits.value & ~U32 | low.value & U32, side.bits.mask & ~U32 | low.mask & U32)
        return
    a.umin = b.umin = max(a.umin, b.umin)
    a.umax = b.umax = min(a.umax, b.umax)
    a.smin = b.smin = max(a.smin, b.smin)
    a.smax = b.smax = min(a.smax, b.smax)
    a.bits = b.bits = tnum.intersect(a.bits, b.bits)


def _not_equal(a: Bounds, value: int, is32: bool) -> None:
    """Move a bound that equals the excluded number by one."""
    if is32:
        a.u32_min += a.u32_min == value
        a.u32_max -= a.u32_max == value
        a.s32_min += a.s32_min == s32(value)
        a.s32_max -= a.s32_max == s32(value)
    else:
        a.umin += a.umin == value
        a.umax -= a.umax == value
        a.smin += a.smin == s64(value)
        a.smax -= a.smax == s64(value)


def _less(op: int, a: Bounds, b: Bounds, is32: bool) -> None:
    gap = int(op in (Jmp.JLT, Jmp.JSLT))
    if op in (Jmp.JLT, Jmp.JLE):
        if is32:
            a.u32_max = min(a.u32_max, b.u32_max - gap)
            b.u32_min = max(a.u32_min + gap, b.u32_min)
        else:
            a.umax = min(a.umax, b.umax - gap)
            b.umin = max(a.umin + gap, b.umin)
    elif is32:
        a.s32_max = min(a.s32_max, b.s32_max - gap)
        b.s32_min = max(a.s32_min + gap, b.s32_min)
    else:
        a.smax = min(a.smax, b.smax - gap)
        b.smin = max(a.smin + gap, b.smin)
