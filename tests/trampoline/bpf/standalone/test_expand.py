"""Instructions replaced by several: jumps and calls still go where they went."""

import pytest

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa import Insn, format_program, parse
from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.rewrite.division import safe_division
from trampoline.bpf.standalone.expand import expand
from trampoline.bpf.standalone.zext import zero_extended


def safe(insn):
    """What replaces a division by a register."""
    return safe_division(insn, 11) if insn.code & 7 in (4, 7) and insn.op in (Alu.DIV, Alu.MOD) else None


PROGRAM = """\
    r1 = subprog[L9] ll
    if r1 == 0 goto L8
    goto L6
L4:
    r0 /= r1
    exit
L6:
    gotol L4
L7:
    r0 %= r1
L8:
    call L9
L9:
    r0 = 0x5 ll
    if r1 == 5 goto L7
    exit
"""


def test_jumps_and_calls_go_where_they_went():
    expanded = expand(parse(PROGRAM), safe)
    assert format_program(expanded.insns) == """\
    r1 = subprog[L13] ll
    if r1 == 0 goto L12
    goto L9
L4:
    if r1 != 0 goto L7
    w0 ^= w0
    goto L8
L7:
    r0 /= r1
L8:
    exit
L9:
    gotol L4
L10:
    if r1 == 0 goto L12
    r0 %= r1
L12:
    call L13
L13:
    r0 = 0x5 ll
    if r1 == 5 goto L10
    exit
"""
    assert expanded.slots == {0: 0, 2: 2, 3: 3, 4: 4, 5: 8, 6: 9, 7: 10, 8: 12, 9: 13, 11: 15, 12: 16, 13: 17}


def test_a_jump_that_goes_nowhere_has_its_place():
    with pytest.raises(BytecodeError, match="slot 1: no instruction at slot 3"):
        expand(parse("r0 = 1\ngoto +1\nr1 = 5 ll\nexit"), lambda insn: None)


def test_a_jump_that_becomes_too_long_is_refused():
    long = (*parse("if r1 == 0 goto +32767"), *parse("r0 /= r1") * 32767, *parse("exit"))
    with pytest.raises(BytecodeError, match="slot 0: a jump of 131068 slots does not fit"):
        expand(long, safe)


def test_a_narrow_compare_and_exchange_clears_the_upper_half():
    (narrow,) = parse("w0 = cmpxchg32_32(r1 +8, w0, w2)")
    assert zero_extended(narrow) == (narrow, Insn(0xBC, imm=1))
    for text in ("r0 = cmpxchg_64(r1 +8, r0, r2)", "w2 = xchg32_32(r1 +8, w2)", "r0 = r1"):
        (insn,) = parse(text)
        assert zero_extended(insn) is None
