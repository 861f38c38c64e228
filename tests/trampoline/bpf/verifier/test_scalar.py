"""What is known of a number holds whatever numbers it was made from."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_releases import RELEASES as ALL_RELEASES

from trampoline.bpf.isa.insn import Alu, Jmp
from trampoline.bpf.verifier.values import arith, branches, tnum
from trampoline.bpf.verifier.values.bounds import Bounds, truncated
from trampoline.bpf.verifier.values.scalar import Scalar, known, s32, s64
from trampoline.bpf.verifier.values.tnum import U32, U64, Tnum

pytestmark = pytest.mark.slow

_EDGES = [0, 1, 2, 7, 31, 32, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, U64]
_NUMBERS = st.one_of(
    st.sampled_from(_EDGES), st.integers(0, 255), st.integers(0, U64), st.integers(-70000, 0).map(lambda n: n & U64)
)


def holds(scalar, number):
    number &= U64
    low = number & U32
    return (
        scalar.bits.holds(number)
        and scalar.umin <= number <= scalar.umax
        and scalar.smin <= s64(number) <= scalar.smax
        and scalar.u32_min <= low <= scalar.u32_max
        and scalar.s32_min <= s32(low) <= scalar.s32_max
    )


@st.composite
def scalars(draw, sync):
    """A scalar with a number that it holds: some bits and some bounds of it are known."""
    number = draw(_NUMBERS)
    mask = draw(st.one_of(st.just(U64), st.just(0), st.integers(0, U64), st.integers(0, 255)))
    out = Bounds()
    out.bits = Tnum(number & ~mask & U64, mask)
    if draw(st.booleans()):
        other = draw(_NUMBERS)
        out.umin, out.umax = min(number, other), max(number, other)
    if draw(st.booleans()):
        other = s64(draw(_NUMBERS))
        out.smin, out.smax = min(s64(number), other), max(s64(number), other)
    if draw(st.booleans()):
        other = draw(_NUMBERS) & U32
        out.u32_min, out.u32_max = min(number & U32, other), max(number & U32, other)
    if draw(st.booleans()):
        other = s32(draw(_NUMBERS))
        out.s32_min, out.s32_max = min(s32(number), other), max(s32(number), other)
    return sync(out), number


def concrete(op, a, b, is32):
    full, width = (U32, 32) if is32 else (U64, 64)
    a, b = a & full, b & full
    if op == Alu.ADD:
        result = a + b
    elif op == Alu.SUB:
        result = a - b
    elif op == Alu.MUL:
        result = a * b
    elif op == Alu.AND:
        result = a & b
    elif op == Alu.OR:
        result = a | b
    elif op == Alu.XOR:
        result = a ^ b
    elif op == Alu.LSH:
        result = a << (b % width)
    elif op == Alu.RSH:
        result = a >> (b % width)
    else:
        result = (s32(a) if is32 else s64(a)) >> (b % width)
    return result & full


RELEASES = pytest.mark.parametrize("release", ALL_RELEASES)


@RELEASES
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_syncing_loses_no_number(release, data):
    scalar, number = data.draw(scalars(ALL_RELEASES[release].verifier.engine.arithmetic.sync))
    assert holds(scalar, number)


@RELEASES
@pytest.mark.parametrize(
    "op", [Alu.ADD, Alu.SUB, Alu.MUL, Alu.AND, Alu.OR, Alu.XOR, Alu.LSH, Alu.RSH, Alu.ARSH], ids=lambda op: op.name
)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), is32=st.booleans())
def test_a_result_holds_what_the_machine_computes(release, op, data, is32):
    how = ALL_RELEASES[release].verifier.engine.arithmetic
    a, left = data.draw(scalars(how.sync))
    if op in (Alu.LSH, Alu.RSH, Alu.ARSH) and data.draw(st.booleans()):
        right = data.draw(st.integers(0, 31 if is32 else 63))
        b = known(right)
    else:
        b, right = data.draw(scalars(how.sync))
    assert holds(arith.binary(op, a, b, is32, how), concrete(op, left, right, is32))


@RELEASES
@settings(max_examples=80, deadline=None)
@given(
    data=st.data(), is32=st.booleans(), signed=st.booleans(), op=st.sampled_from([Alu.DIV, Alu.MOD]), divisor=_NUMBERS
)
def test_a_quotient_and_a_remainder_are_held(release, data, is32, signed, op, divisor):
    how = ALL_RELEASES[release].verifier.engine.arithmetic
    a, left = data.draw(scalars(how.sync))
    full = U32 if is32 else U64
    x, y = left & full, divisor & full
    if signed:
        x, y = (s32(x), s32(y)) if is32 else (s64(x), s64(y))
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
    result = quotient if op == Alu.DIV else x - quotient * y
    assert holds(arith.divided(op, a, known(divisor), is32, signed, how), result & full)


@RELEASES
@settings(max_examples=80, deadline=None)
@given(data=st.data(), is32=st.booleans(), size=st.sampled_from([1, 2, 4]))
def test_a_narrowed_number_is_held(release, data, is32, size):
    how = ALL_RELEASES[release].verifier.engine.arithmetic
    a, number = data.draw(scalars(how.sync))
    low = number & (1 << 8 * size) - 1
    assert holds(truncated(a, size, how.sync), low)
    half = 1 << (8 * size - 1)
    signed = (low ^ half) - half
    assert holds(arith.sign_extended(a, size, is32, how), signed & (U32 if is32 else U64))
    assert holds(arith.low32(a, how), number & U32)


@RELEASES
@settings(max_examples=50, deadline=None)
@given(data=st.data(), is32=st.booleans(), width=st.sampled_from([16, 32, 64]))
def test_a_negated_and_a_swapped_number_are_held(release, data, is32, width):
    how = ALL_RELEASES[release].verifier.engine.arithmetic
    a, number = data.draw(scalars(how.sync))
    assert holds(arith.negated(a, is32, how), -number & (U32 if is32 else U64))
    low = (number & (1 << width) - 1).to_bytes(width // 8, "little")
    assert holds(arith.swapped(a, width, how, swap=True), int.from_bytes(low, "big"))
    assert holds(arith.swapped(a, width, how, swap=False), int.from_bytes(low, "little"))


@RELEASES
@pytest.mark.parametrize("op", list(branches.FLIPPED), ids=lambda op: Jmp(op).name)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), is32=st.booleans())
def test_a_decided_jump_is_decided_so_by_every_number_and_the_other_side_loses_none(release, op, data, is32):
    rules = ALL_RELEASES[release].verifier.engine
    sync = rules.arithmetic.sync
    a, left = data.draw(scalars(sync))
    b, right = data.draw(scalars(sync))
    really = branches._compare_constants(op, left, right, is32)
    taken = rules.taken(op, a, b, is32)
    assert taken is None or taken == really
    if taken is None:
        side = op if really else branches.NEGATED[op]
        refined_left, refined_right = rules.refine(side, a, b, is32, sync)
        assert holds(refined_left, left)
        assert holds(refined_right, right)


@given(st.integers(0, U64), st.integers(0, U64))
def test_a_range_of_bits_holds_its_ends(low, high):
    low, high = min(low, high), max(low, high)
    bits = tnum.tnum_range(low, high)
    assert bits.holds(low)
    assert bits.holds(high)


def test_a_known_number_is_shown_as_it_is():
    assert str(known(-1)) == "-1"
    assert str(Scalar(Tnum(0, 255), 0, 255, 0, 255, 0, 255, 0, 255)) == (
        "scalar(smin=smin32=0,smax=umax=smax32=umax32=255,var_off=(0x0; 0xff))"
    )
