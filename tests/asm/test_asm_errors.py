"""Bad text: what is said, and where."""

import pytest

from asm import AsmError, AssemblySyntaxError, EncodingMismatch, assemble

BAD = [
    ("frob rax", 1, "unknown instruction 'frob'"),
    ("  mov rax,", 11, "the line ends"),
    ("mov rax rbx", 9, "',' is expected"),
    ("mov rax, rbx,", 14, "the line ends"),
    ("mov rax, [rbp - 8", 18, "']' is expected"),
    ("mov rax, ]", 10, "operand is expected"),
    ("mov rax, [rbp - ]", 17, "operand is expected"),
    ("mov rax, [rsp*2]", 11, "rsp can't be an index"),
    ("mov rax, [rbx*3]", 11, "1, 2, 4 or 8"),
    ("mov rax, [rbx*rcx]", 15, "1, 2, 4 or 8"),
    ("mov rax, [4*5]", 13, "only a register"),
    ("mov rax, [rax + rbx + rcx]", 23, "two registers"),
    ("mov rax, [rax*2 + rbx*2]", 19, "only one register"),
    ("mov rax, [rax + ebx]", 17, "same size"),
    ("mov rax, [8 - rbx]", 15, "subtracted"),
    ("mov rax, [rip + rax + 5]", 11, "rip stands alone"),
    ("mov rax, [riz + 5]", 11, "riz can't be part"),
    ("mov rax, [ax]", 11, "ax can't be part"),
    ("mov rax, [rbp + 0x80000000]", 17, "displacement of 32 bits"),
    ("mov rax, rip", 10, "rip can't stand here"),
    ("mov rax, 0xg", 10, "no number"),
    ("mov rax, 10h", 10, "no number"),
    ("mov rax, 010", 10, "no number"),
    ("mov rax, 0x10000000000000000", 10, "64 bits"),
    ("mov rax, 0xffffffffffffffff + 1", 10, "64 bits"),
    ("mov eax, 0x100000000", 1, "does not fit eax"),
    ("movabs eax, 5", 1, "64-bit register"),
    ("movabs rax, [rbx]", 1, "64-bit register"),
    ("mov rax, nowhere", 10, "unknown symbol 'nowhere'"),
    ("jmp nowhere + 5", 5, "unknown symbol 'nowhere'"),
    (".quad nowhere", 7, "unknown symbol 'nowhere'"),
    ("mov [rax], 5", 5, "size of this memory operand"),
    ("inc [rax]", 5, "size of this memory operand"),
    ("movzx eax, [rdi]", 12, "size of this memory operand"),
    ("shl [rdi], cl", 5, "size of this memory operand"),
    ("mov rax, bl", 1, "no encoding"),
    ("mov rax, 'a'", 10, "unexpected"),
    ("Mov rax, 5", 1, "no mnemonic"),
    ("5", 1, "is expected"),
    ("rax: ret", 1, "rax is a register"),
    ("lock", 5, "is expected"),
    ("lock rep movsq", 6, "no mnemonic"),
    ("{disp32} mov rax, rbx", 10, "no displacement"),
    ("{disp32} loop 5", 10, "no such form"),
    ("{disp8} jmp 5", 1, "no mnemonic"),
    ("lock jmp 5", 6, "no such form"),
    (".phase No", 1, "'No' is no phase"),
    (".phase two words", 1, "one word"),
    (".phase", 1, "one word"),
    (".align 0", 1, "1 to 4096"),
    (".align rax", 1, "1 to 4096"),
    (".align 16, 12", 1, "longest nop"),
    (".byte 0x100", 7, "8 bits"),
    (".byte -129", 7, "8 bits"),
    (".byte", 1, "takes numbers"),
    (".quad rax", 1, "takes numbers"),
    (".set a, 5", 1, "unknown directive"),
    (".incbin 5", 1, "unknown directive"),
    ("movzx rax, ah", 12, "REX"),
    ("xbegin rax", 1, "no encoding"),
    ("a, b", 2, "is expected"),
    ("mov rax, \N{GREEK SMALL LETTER ALPHA}", 10, "unexpected"),
    ("mov rax, \0", 10, "unexpected"),
    ("mov rax, 5\x0bret", 12, "',' is expected"),
    ("mov rax, \N{ARABIC-INDIC DIGIT FIVE}", 10, "unexpected"),
    ("mov rax, rbx, rcx, rdx, rsi", 1, "four operands"),
    ("nop " + "[" * 2000, 1001, "longer than"),
]


@pytest.mark.parametrize(("text", "column", "reason"), BAD)
def test_bad_text(text, column, reason):
    with pytest.raises(AssemblySyntaxError) as caught:
        assemble("nop\nlabel: ; fine\n" + text, 0x1000, name="stub.s")
    error = caught.value
    assert (error.name, error.line, error.column, error.source) == ("stub.s", 3, column, text)
    assert reason in error.reason
    first, source, caret = str(error).split("\n")
    assert first.startswith(f"stub.s:3:{column}: ")
    assert source == "  " + text
    assert caret == " " * (column + 1) + "^"


def test_the_caret_stands_under_its_character():
    with pytest.raises(AssemblySyntaxError) as caught:
        assemble("\tmov\trax, ?")
    assert str(caught.value).endswith("\n  \tmov\trax, ?\n  \t   \t     ^")


MISMATCHES = [
    ("push 0x81000000", "push 0"),
    ("push 0xffffffff", "push 0xffff"),
    ("mov al, 0x1ff", "mov al, 0xff"),
    ("add eax, 0x1ffffffff", "add eax, 0xffffffff"),
    ("rep add rax, rbx", "add rax, rbx"),
    ("imul rax, 5", "imul rax, rax, 5"),
    ("rep lfence", "incsspd eax"),
    ("cpuid\nsalc", "something that is no single instruction"),
]


@pytest.mark.parametrize(("text", "got"), MISMATCHES)
def test_another_instruction_than_meant(text, got):
    lines = text.split("\n")
    with pytest.raises(EncodingMismatch) as caught:
        assemble("nop\n" + text, name="stub.s")
    error = caught.value
    assert (error.line, error.got, error.source) == (len(lines) + 1, got, lines[-1])
    assert error.code.hex() in str(error)
    assert error.meant.split(" ")[0] == lines[-1].split(" ")[0]


def test_the_failing_statement_of_many_is_named():
    good = [f"add rax, {number * 77 + 1000}" for number in range(20)]
    for bad in ("push 0x81000000", "mov rax, bl", "frobnicate"):
        for place in (0, 7, 20):
            text = [*good[:place], bad, *good[place:]]
            with pytest.raises(AsmError) as caught:
                assemble("\n".join(text))
            assert caught.value.line == place + 1
    assert len(assemble("\n".join(good)).lines) == 20


def test_a_failure_leaves_nothing_behind():
    before = assemble("lbl: je lbl\nmov rax, off", 0, {"off": 5})
    for text in ("lbl: je lbl\nmov rax, off", "lbl: je lbl\nmov rax, off\nfrob"):
        with pytest.raises(AssemblySyntaxError):
            assemble(text)
    assert assemble("lbl: je lbl\nmov rax, off", 0, {"off": 5}) == before
