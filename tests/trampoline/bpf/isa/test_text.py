"""Programs as text: labels, the spellings that are read, and errors with their place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trampoline.bpf.errors import BytecodeSyntaxError, TrampolineError
from trampoline.bpf.isa import Insn, format_program, parse

PROGRAM = """\
    r6 = r1
    r1 = map[fd:3] ll
    r2 = subprog[L12] ll
    call L12
    if r0 == 0 goto L10
L7:
    r0 = 0x5 ll
    may_goto L7
L10:
    r0 = 0
    exit
L12:
    w0 = *(u32 *)(r1 +8)
    gotol L12
"""


def test_labels_stand_where_jumps_and_calls_go():
    program = parse(PROGRAM)
    assert [insn.off for insn in program if insn.jump is not None] == [3, -3, 0]
    assert [insn.function for insn in program if insn.function is not None] == [8, 6]
    assert program[-1].jump == -2
    assert format_program(program) == PROGRAM


def test_a_jump_into_the_middle_or_out_of_the_program_is_a_distance():
    program = parse("goto +1\nr1 = 5 ll\ngoto -9\nexit")
    assert format_program(program) == "    goto +1\n    r1 = 0x5 ll\n    goto -9\n    exit\n"
    assert parse(format_program(program)) == program


def test_a_label_may_stand_at_the_end():
    program = parse("goto out\nout:")
    assert program == (Insn(5),)
    assert format_program(program) == "    goto L1\nL1:\n"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("r0 = *(u64 *)(r1 + 8)", "r0 = *(u64 *)(r1 +8)"),
        ("r0 = *(u64*)(r1+8)", "r0 = *(u64 *)(r1 +8)"),
        ("r0 = *(u64 *)(r1 - 0x8)", "r0 = *(u64 *)(r1 -8)"),
        ("r0 = *(u64 *)(r1)", "r0 = *(u64 *)(r1 +0)"),
        ("r0 = *(u32 *)(r1 +8)", "w0 = *(u32 *)(r1 +8)"),
        ("*(u8 *)(r10 -1) = r1", "*(u8 *)(r10 -1) = w1"),
        ("  r1=r2 ; moved", "r1 = r2"),
        ("r1 += 0x10 // sixteen", "r1 += 16"),
        ("r1 &= 0xfffffff0", "r1 &= -16"),
        ("r1 = -5 ll", "r1 = 0xfffffffffffffffb ll"),
        ("12: (b7) r0 = 0", "r0 = 0"),
        ("7: exit # done", "exit"),
        ("if r1 == 0x0 goto pc+3", "if r1 == 0 goto +3"),
        ("if w2 & 4 goto +3", "if w2 & 0x4 goto +3"),
        ("goto +0x3 <LBB0_2>", "goto +3"),
        ("call bpf_map_lookup_elem#1", "call 1"),
        ("call pc-2", "call pc-2"),
        ("r1 = map[fd:5]", "r1 = map[fd:5] ll"),
        ("r2 = atomic64_fetch_add((u64 *)(r1 +0), r2)", "r2 = atomic_fetch_add((u64 *)(r1 +0), r2)"),
        ("r2 = atomic64_xchg((u64 *)(r1 +0), r2)", "r2 = xchg_64(r1 +0, r2)"),
        ("r0 = atomic_cmpxchg((u32 *)(r1 +0), r0, r2)", "w0 = cmpxchg32_32(r1 +0, w0, w2)"),
        ("r0 = *(u8 *)skb[r2 + 3]", "r0 = *(u8 *)skb[r2 + 3]"),
        ("r0 = *(u8 *)skb[r2]", "r0 = *(u8 *)skb[r2 + 0]"),
    ],
)
def test_spellings_of_one_instruction(written, canonical):
    assert format_program(parse(written)).strip() == canonical


def test_blank_lines_comments_and_several_labels():
    assert parse("\n; nothing\n  a: b:\nc: r0 = 0 # zero\n\n goto a\n goto c") == (
        Insn(0xB7),
        Insn(5, off=-2),
        Insn(5, off=-3),
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "expected", "found"),
    [
        ("r0 = 0\n  frob r1", 2, 3, "an instruction", "'frob'"),
        ("r0 = 0 0", 1, 8, "the end of the line", "'0'"),
        ("r0 = ?", 1, 6, "an instruction's word", "'?'"),
        ("r0 = 12ab", 1, 6, "an instruction's word", "'1'"),
        ("r0", 1, 3, "= or an operation and =", "the end of the line"),
        ("r0 =   ; nothing", 1, 5, "a register, an immediate, a load or an operation", "the end of the line"),
        ("r1 = w2", 1, 6, "a register (r)", "'w2'"),
        ("w1 += r2", 1, 7, "a register (w)", "'r2'"),
        ("w1 = 5 ll", 1, 1, "a register (r)", "'w1'"),
        ("r1 = 0x100000000", 1, 6, "an immediate of 32 bits, or ll after it", "'4294967296'"),
        ("r1 += 4294967296", 1, 7, "an immediate from -2147483648 to 4294967295", "'4294967296'"),
        ("r1 = *(u24 *)(r2 +0)", 1, 8, "a type (u8 to u64, s8 to s32)", "'u24'"),
        ("r1 = *(u8 *)(w2 +0)", 1, 14, "a register (r)", "'w2'"),
        ("r1 = *(u8 *)(r2 +40000)", 1, 17, "an offset from -32768 to 32767", "'40000'"),
        ("r1 = *(u8 *)(r2 +0", 1, 19, "')'", "the end of the line"),
        ("*(s8 *)(r2 +0) = 1", 1, 2, "a type without a sign", "'('"),
        ("lock *(u64 *)(r1 +0) -= r2", 1, 22, "+=, |=, &= or ^=", "'-='"),
        ("r3 = atomic_fetch_add((u64 *)(r1 +0), r2)", 1, 39, "r3", "'r2'"),
        ("r1 = cmpxchg_64(r1 +0, r0, r2)", 1, 1, "r0 or w0", "'r1'"),
        ("r1 = frob(r2)", 1, 6, "an operation", "'frob'"),
        ("r1 = bswap16 r2", 1, 14, "r1", "'r2'"),
        ("w1 = (s32)w2", 1, 7, "s8 or s16", "'s32'"),
        ("if r1 ~ r2 goto +1", 1, 7, "an instruction's word", "'~'"),
        ("if r1 += r2 goto +1", 1, 7, "a comparison", "'+='"),
        ("if r1 == x goto +1", 1, 10, "a register or an immediate", "'x'"),
        ("if r1 == r2 got +1", 1, 13, "'goto'", "'got'"),
        ("exit\ngoto nowhere", 2, 6, "a label defined in this text", "'nowhere'"),
        ("goto 3", 1, 6, "a label or a distance with a sign", "'3'"),
        ("goto +32768", 1, 6, "a distance from -32768 to 32767", "'32768'"),
        ("a:\nexit\na: exit", 3, 1, "a new label", "'a'"),
        ("call", 1, 5, "a helper's number, a label, pc and a distance, or kfunc", "the end of the line"),
        ("r1 = map[id:3] ll", 1, 10, "fd or idx", "'id'"),
        ("  r12 = 0", 1, 3, "an instruction", "opcode 0xb7: no register 12 for dst"),
        ("nospec", 1, 1, "an instruction", "unknown opcode 0xc2"),
        ("probe *(u8 *)(r1 +0) = 1", 1, 7, "an access that probe supports", "'*'"),
        ("probe arena exit", 1, 7, "an access that probe supports", "'arena'"),
        ("arena exit", 1, 7, "an access that arena supports", "'exit'"),
    ],
)
def test_errors_name_line_column_and_what_was_expected(text, line, column, expected, found):
    with pytest.raises(BytecodeSyntaxError) as caught:
        parse(text)
    error = caught.value
    assert isinstance(error, TrampolineError)
    assert (error.line, error.column, error.expected, error.found) == (line, column, expected, found)
    assert str(error) == f"line {line}, column {column}: expected {expected}, found {found}"


def test_a_label_too_far_for_a_jump_is_refused_and_gotol_reaches_it():
    far = "exit\n" * 0x8000 + "end: exit"
    with pytest.raises(BytecodeSyntaxError, match="line 1, column 6: expected a label within 16 bits of slots"):
        parse("goto end\n" + far)
    assert parse("gotol end\n" + far)[0] == Insn(6, imm=0x8000)


def test_a_number_of_any_length_is_refused_with_its_place():
    with pytest.raises(BytecodeSyntaxError, match="line 1, column 7: expected an immediate from"):
        parse("r1 += " + "9" * 10_000)


_SIGNS = [")", "*", "+", "-", "=", "probe", "lock", "call", "kfunc", "r1", "5"]
_WORDS = sorted({*PROGRAM.replace("(", " ( ").split(), *_SIGNS})


@settings(max_examples=1000)
@given(st.text(max_size=20) | st.lists(st.sampled_from(_WORDS), max_size=8).map(" ".join))
def test_any_text_is_a_program_or_the_typed_error(text):
    for rewritten in (False, True):
        try:
            program = parse(text, rewritten=rewritten)
        except BytecodeSyntaxError as error:
            lines = text.split("\n")
            place = error.line, error.column
        else:
            assert parse(format_program(program), rewritten=rewritten) == program
            continue
        assert 1 <= place[0] <= len(lines)
        assert 1 <= place[1] <= len(lines[place[0] - 1]) + 1
