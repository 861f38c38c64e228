"""For all statements: what is read back is what was written, and nothing but AsmError comes of the rest."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asm import AsmError, assemble, decode
from asm.encodings import CONDITIONS
from asm.registers import REGISTERS_8, REGISTERS_32, REGISTERS_64

pytestmark = pytest.mark.slow

AT = 0xFFFFFFFFC0001380

r64 = st.sampled_from(REGISTERS_64)
r32 = st.sampled_from(REGISTERS_32)
no_rsp = st.sampled_from([name for name in REGISTERS_64 if name != "rsp"])
s32 = st.one_of(st.integers(-130, 130), st.integers(-(1 << 31), (1 << 31) - 1))
any64 = st.one_of(s32, st.integers(0, (1 << 64) - 1))
alu = st.sampled_from(["add", "or", "adc", "sbb", "and", "sub", "xor", "cmp"])
condition = st.sampled_from(CONDITIONS)


@st.composite
def addresses(draw):
    """What stands between the brackets."""
    kind = draw(st.integers(0, 5))
    shift = draw(s32)
    match kind:
        case 0:
            return f"{draw(r64)} + {shift}"
        case 1:
            return f"{draw(r64)} + {draw(no_rsp)}*{draw(st.sampled_from([1, 2, 4, 8]))} + {shift}"
        case 2:
            return f"{draw(no_rsp)}*{draw(st.sampled_from([2, 4, 8]))} + {shift}"
        case 3:
            return f"rip + {AT + draw(st.integers(-(1 << 30), 1 << 29)):#x}"
        case 4:
            return f"{shift}"
        case _:
            return draw(r64)


@st.composite
def memory(draw, size="qword"):
    return f"{size} ptr {draw(st.sampled_from(['', '', 'gs:', 'fs:']))}[{draw(addresses())}]"


statements = st.one_of(
    st.builds("{} {}, {}".format, alu, r64, r64),
    st.builds("{} {}, {}".format, alu, r32, r32),
    st.builds("{} {}, {}".format, alu, r64, s32),
    st.builds("{} {}, {}".format, alu, r64, memory()),
    st.builds("{} {}, {}".format, alu, memory(), r64),
    st.builds("{} {}, {}".format, alu, memory(), s32),
    st.builds("{} {}, {}".format, alu, memory("byte"), st.integers(-128, 255)),
    st.builds("{} {}, {}".format, alu, memory("word"), st.integers(-32768, 65535)),
    st.builds("lock {} {}, {}".format, alu.filter("cmp".__ne__), memory(), r64),
    st.builds("mov {}, {}".format, r64, any64),
    st.builds("movabs {}, {}".format, r64, any64),
    st.builds("mov {}, {}".format, r32, st.integers(-(1 << 31), (1 << 32) - 1)),
    st.builds("mov {}, {}".format, r64, r64),
    st.builds("mov {}, {}".format, r64, memory()),
    st.builds("mov {}, {}".format, memory(), r64),
    st.builds("mov {}, {}".format, memory(), s32),
    st.builds("mov {}, {}".format, memory("dword"), st.integers(-(1 << 31), (1 << 32) - 1)),
    st.builds("lea {}, {}".format, r64, memory()),
    st.builds("movzx {}, {}".format, r32, memory("byte")),
    st.builds("test {}, {}".format, r64, r64),
    st.builds("xchg {}, {}".format, memory(), r64),
    st.builds("lock cmpxchg {}, {}".format, memory(), r64),
    st.builds("cmov{} {}, {}".format, condition, r64, memory()),
    st.builds("set{} {}".format, condition, st.sampled_from(REGISTERS_8)),
    st.builds("j{} {}".format, condition, st.integers(AT - (1 << 30), AT + (1 << 29))),
    st.builds("call {}".format, st.integers(AT - (1 << 30), AT + (1 << 29))),
    st.builds("{} {}".format, st.sampled_from(["call", "jmp", "push", "pop"]), r64),
    st.builds("{} {}".format, st.sampled_from(["call", "jmp", "push", "pop", "inc", "dec", "neg"]), memory()),
    st.builds("{} {}, {}".format, st.sampled_from(["shl", "shr", "sar", "rol"]), r64, st.integers(1, 63)),
    st.builds("push {}".format, s32),
    st.builds("imul {}, {}, {}".format, r64, r64, s32),
    st.builds("nop dword ptr [{}]".format, r64),
    st.sampled_from(["endbr64", "int3", "leave", "ret", "nop5", "pause", "rep movsq", "cpuid", "pushfq", "popfq"]),
)


@settings(max_examples=400)
@given(statements)
def test_what_was_written_is_read_back(text):
    image = assemble(text, AT)
    (insn,) = decode(image.code, AT)
    assert insn.text == image.lines[0].text
    again = assemble(insn.text, AT)
    assert again.lines == image.lines
    assert again.code == image.code


@settings(max_examples=100)
@given(st.lists(statements, max_size=12))
def test_a_text_is_its_statements_one_after_the_other(texts):
    image = assemble("\n".join(texts), AT)
    code = b""
    for text in texts:
        code += assemble(text, AT + len(code)).code
    assert image.code == code
    assert [insn.text for insn in decode(image.code, AT)] == [line.text for line in image.lines]


@settings(max_examples=200)
@given(text=statements.filter(lambda text: re.search(r"\[r[a-z0-9]+ \+ (r\w+\*\d \+ )?-?\d+\]", text)))
def test_the_long_form_means_the_same(text):
    short, long = assemble(text, AT), assemble("{disp32} " + text, AT)
    assert long.lines[0].text.partition("[")[0] == short.lines[0].text.partition("[")[0]
    assert len(long.code) - len(short.code) in (0, 3, 4)
    assert re.sub(r" \+ 0\]", "]", decode(long.code, AT)[0].text) == decode(short.code, AT)[0].text


WORDS = """
mov add lock rep data16 lea jmp call je push movsd cmpsq xlatb nop frob
rax ah r8b sil eax rip riz xmm0 cr0 gs gs: [ ] + - * , ; # : . byte qword ptr
.quad .align .phase .set .incbin save 0 1 -1 0x10 0xffffffffffffffff 99999999999999999999 1b 0b 0x
$ @ ' " \\ ( ) { } {disp32} % & | ! ~ < > = st(0) {k1} label label: é
"""
words = st.sampled_from([*WORDS.split(), "\0", "\x7f", "\t", "\u2028", "\n"])


@settings(max_examples=1500)
@given(st.lists(words, max_size=9).map(" ".join))
@example("lock [rax]")
@example("mov ah, r8b")
def test_garbage_gives_an_error_or_an_image(text):
    try:
        image = assemble(text, AT, {"label": 5})
    except AsmError:
        return
    assert sum(line.size for line in image.lines) == len(image.code)


@settings(max_examples=500)
@given(st.text(max_size=60))
def test_any_text_gives_an_error_or_an_image(text):
    try:
        image = assemble(text)
    except AsmError:
        return
    assert sum(line.size for line in image.lines) == len(image.code)


@settings(max_examples=300)
@given(st.binary(max_size=30))
def test_any_bytes_decode_or_do_not(code):
    try:
        insns = decode(code, AT)
    except AsmError:
        return
    assert b"".join(insn.code for insn in insns) == code
    assert [insn.address for insn in insns] == [AT + sum(i.size for i in insns[:n]) for n in range(len(insns))]
