"""The table of the kernel's own byte sequences."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asm import (
    CALL_DEPTH_ACCOUNT_SIZE,
    ENDBR64,
    INT3,
    NOPS,
    DisplacementError,
    assemble,
    call_depth_account,
    call_rel32,
    decode,
    emit_nops,
    instruction_count,
    jcc_rel8,
    jcc_rel32,
    jmp_rel8,
    jmp_rel32,
)
from asm.encodings import CONDITION_ALIASES, CONDITIONS

AT = 0xFFFFFFFFC0001380
MASK = (1 << 64) - 1


@pytest.mark.parametrize("size", sorted(NOPS))
def test_a_nop_is_one_instruction_of_its_size(size):
    (insn,) = decode(NOPS[size], AT)
    assert (insn.size, insn.mnemonic) == (size, "nop")


def test_sequences():
    assert [insn.text for insn in decode(ENDBR64 + INT3, AT)] == ["endbr64", "int3"]


@pytest.mark.parametrize(
    ("size", "want"),
    [
        (0, ""),
        (3, "0f1f00"),
        (8, "0f1f840000000000"),
        (13, "0f1f8400000000000f1f440000"),
        (16, "0f1f8400000000000f1f840000000000"),
    ],
)
def test_emit_nops(size, want):
    assert emit_nops(size).hex() == want


def test_emit_nops_with_longer_nops():
    assert emit_nops(13, 11) == NOPS[11] + NOPS[2]
    with pytest.raises(ValueError, match="-1"):
        emit_nops(-1)


@given(size=st.integers(0, 200), longest=st.sampled_from([8, 11]))
def test_emit_nops_fills_with_as_few_as_can_be(size, longest):
    code = emit_nops(size, longest)
    assert len(code) == size
    assert instruction_count(code) == -(-size // longest)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: call_rel32(AT, 0xFFFFFFFF8162A350), "e8cb8f62c1"),
        (lambda: jmp_rel32(AT, AT + 5), "e900000000"),
        (lambda: jmp_rel8(AT, AT), "ebfe"),
        (lambda: jcc_rel8("ne", AT, AT + 2 + 127), "757f"),
        (lambda: jcc_rel32("e", AT, AT + 6 - 1), "0f84ffffffff"),
        (lambda: call_rel32(0, MASK), "e8faffffff"),
    ],
)
def test_branches(make, want):
    assert make().hex() == want


@pytest.mark.parametrize("name", [*CONDITIONS, *CONDITION_ALIASES])
def test_conditions_decode_by_their_names(name):
    canonical = CONDITION_ALIASES.get(name, name)
    for code in (jcc_rel8(name, AT, AT + 0x40), jcc_rel32(name, AT, AT + 0x40)):
        (insn,) = decode(code, AT)
        assert (insn.mnemonic, insn.operands) == (f"j{canonical}", hex(AT + 0x40))


@pytest.mark.parametrize(
    ("make", "size", "bits"),
    [
        (call_rel32, 5, 32),
        (jmp_rel32, 5, 32),
        (jmp_rel8, 2, 8),
        (lambda at, to: jcc_rel32("e", at, to), 6, 32),
        (lambda at, to: jcc_rel8("e", at, to), 2, 8),
        (call_depth_account, CALL_DEPTH_ACCOUNT_SIZE, 32),
    ],
)
def test_reach_ends_exactly(make, size, bits):
    half = 1 << (bits - 1)
    for distance in (half - 1, -half):
        make(AT, (AT + size + distance) & MASK)
    for distance in (half, -half - 1):
        target = (AT + size + distance) & MASK
        with pytest.raises(DisplacementError) as caught:
            make(AT, target)
        assert (caught.value.address, caught.value.target, caught.value.errno) == (AT, target, errno.ERANGE)
        assert hex(target) in str(caught.value)


@given(at=st.integers(-(1 << 31), -CALL_DEPTH_ACCOUNT_SIZE).map(lambda n: n & MASK), gs_offset=st.integers(0, 1 << 30))
def test_call_depth_accounting_names_the_per_cpu_offset(at, gs_offset):
    try:
        code = call_depth_account(at, gs_offset)
    except DisplacementError:
        assert not -(1 << 31) <= gs_offset - (at + 9 - (1 << 64)) < 1 << 31
        return
    assert code[:4] == b"\x65\x48\xc1\x3d"
    assert code[8] == 5
    assert (at + 9 + struct.unpack("<i", code[4:8])[0]) & MASK == gs_offset
    assert assemble("sar qword ptr gs:[rip + depth], 5", at, {"depth": gs_offset}).code == code
