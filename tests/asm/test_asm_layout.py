"""Labels, branches, alignment, symbols and data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asm import AsmError, AssemblySyntaxError, DisplacementError, assemble, decode, emit_nops, jcc_rel8, jcc_rel32

AT = 0xFFFFFFFFC0001380


def test_short_branches_where_they_reach():
    image = assemble("top: nop\nje top\njmp end\nend: ret", AT)
    assert image.code.hex() == "90" "74fd" "eb00" "c3"
    assert image.symbols == {"top": AT, "end": AT + 5}


def test_a_branch_grows_when_it_has_to():
    assert assemble("je end\n" + "nop\n" * 127 + "end: ret").code[:2].hex() == "747f"
    assert assemble("je end\n" + "nop\n" * 128 + "end: ret").code[:6].hex() == "0f8480000000"


def test_growing_makes_others_grow():
    # Every jump spans the next one and just reaches; when the last one has to grow, so have all before it.
    count = 6
    text = "".join(f"jmp l{n}\n" + "nop\n" * 60 + f"l{n - 1}:\n" * (n > 0) + "nop\n" * 5 for n in range(count))

    def sizes(image):
        return [insn.size for insn in decode(image.code, AT) if insn.mnemonic == "jmp"]

    last = f"l{count - 1}: ret"
    assert sizes(assemble(text + "nop\n" * 62 + last, AT)) == [2] * count
    assert sizes(assemble(text + "nop\n" * 63 + last, AT)) == [5] * count


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{disp32} jmp l\nl:", "e900000000"),
        ("{disp32} jne l\nl:", "0f8500000000"),
        ("jnz l\nl:", "7500"),
        ("call l\nl:", "e800000000"),
        ("loop l\nl:", "e200"),
        ("jrcxz l\nl:", "e300"),
        ("jecxz l\nl:", "67e300"),
        ("xbegin l\nl:", "c7f800000000"),
    ],
)
def test_forms_of_branches(text, want):
    assert assemble(text, AT).code.hex() == want


def test_branches_to_symbols_and_numbers():
    symbols = {"enter": 0xFFFFFFFF8162A350}
    for target in ("enter", "0xffffffff8162a350", "enter + 5 - 5"):
        assert assemble(f"call {target}", 0xFFFFFFFFC00013C5, symbols).code.hex() == "e8868f62c1"
    image = assemble("call enter+5", AT, symbols)
    assert image.lines[0].text == "call enter + 5"
    assert decode(image.code, AT)[0].operands == hex(symbols["enter"] + 5)


def test_an_own_label_comes_before_a_symbol():
    assert assemble("x: jmp x", AT, {"x": 0}).code.hex() == "ebfe"


def test_only_asks_for_symbols_that_are_used():
    class Kallsyms(dict):
        def __iter__(self):
            raise AssertionError("47,000 symbols are not copied for each image")

    assert assemble("mov edi, here", AT, Kallsyms(here=5)).code.hex() == "bf05000000"


@pytest.mark.parametrize(
    ("text", "want", "shown"),
    [
        ("mov rax, [rbp + -8]", "488b45f8", "mov rax, qword ptr [rbp - 8]"),
        ("mov rdi, fn", "48c7c750a36281", "mov rdi, fn"),
        ("movabs rdi, fn", "48bf50a36281ffffffff", "movabs rdi, fn"),
        ("mov rdi, prog", "48bf0050060000c9ffff", "movabs rdi, prog"),
        ("mov qword ptr [rbp + off], rax", "488945e0", "mov qword ptr [rbp + off], rax"),
        ("mov [rbp + off], rax", "488945e0", "mov qword ptr [rbp + off], rax"),
        ("cmp qword ptr [rbp - size], 0", "48837de800", "cmp qword ptr [rbp - size], 0"),
        ("lea rsi, [rbp + off + 8]", "488d75e8", "lea rsi, [rbp + off + 8]"),
        ("mov rax, gs:[size]", "65488b042518000000", "mov rax, qword ptr gs:[size]"),
        ("mov rax, [rax*8 + size]", "488b04c518000000", "mov rax, qword ptr [rax*8 + size]"),
        ("sub rsp, size", "4883ec18", "sub rsp, size"),
        ("add rsp, -size", "4883c4e8", "add rsp, -size"),
        ("mov qword ptr [rbp + off], size", "48c745e018000000", "mov qword ptr [rbp + off], size"),
        ("sub rsp, size - 8", "4883ec10", "sub rsp, size - 8"),
    ],
)
def test_symbols_are_numbers(text, want, shown):
    symbols = {"fn": 0xFFFFFFFF8162A350, "prog": 0xFFFFC90000065000, "off": -0x20, "size": 0x18}
    image = assemble(text, AT, symbols)
    assert (image.code.hex(), image.lines[0].text) == (want, shown)


def test_the_same_text_with_other_symbols():
    for size, want in ((8, "4883ec08"), (0x80, "4881ec80000000"), (8, "4883ec08")):
        assert assemble("sub rsp, size", AT, {"size": size}).code.hex() == want


def test_labels_in_numbers():
    image = assemble("start: mov rdi, start\nmov eax, end - start\nlea rsi, [rip + end]\nend: ret", AT)
    assert image.code.hex() == "48c7c7801300c0" "b813000000" "488d3500000000" "c3"
    assert [line.text for line in image.lines][:3] == ["mov rdi, start", "mov eax, end - start", "lea rsi, [rip + end]"]


def test_sizes_that_depend_on_a_label_settle():
    body = "start: add rax, end - start\n" + "nop\n" * 123 + "end: ret"
    assert assemble(body).code[:4].hex() == "4883c07f"
    assert assemble(body.replace("end: ret", "nop\nend: ret")).code[:6].hex() == "480582000000"


def test_sizes_that_never_settle_are_an_error():
    # In 4 bytes the number is 128 and wants 6; in 6 bytes it is 126 and wants 4.
    with pytest.raises(AsmError, match="settle"):
        assemble("start: add rax, 132 - end + start\nend: ret")
    assert assemble("start: add rax, 131 - end + start\nend: ret").code[:4].hex() == "4883c07f"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("mov rdx, [rip + x]", "488b15f9ef3fc1"),
        ("mov rdx, [rip + 0xffffffff81400380]", "488b15f9ef3fc1"),
        ("mov rdx, [rip + x + 8]", "488b1501f03fc1"),
        ("cmp dword ptr [rip + x], 5", "833df9ef3fc105"),
        ("mov word ptr [rip + x], 5", "66c705f7ef3fc10500"),
        ("jmp [rip + x]", "ff25faef3fc1"),
        ("movups xmm0, [rip + x]", "0f1005f9ef3fc1"),
    ],
)
def test_rip_names_the_address_itself(text, want):
    image = assemble(text, AT, {"x": 0xFFFFFFFF81400380})
    assert image.code.hex() == want
    assert "[rip + 0xffffffff8140038" in decode(image.code, AT)[0].operands


def test_rip_with_the_next_instruction():
    image = assemble("lea rax, [rip + next]\nnext: ret", AT)
    assert image.code.hex() == "488d0500000000c3"
    assert decode(image.code, AT)[0].operands == f"rax, [rip + {AT + 7:#x}]"


def test_align_counts_within_the_image():
    image = assemble(".align 16\nret\n.align 16 ; fill\nret\n.align 1\n.align 4, 11", 0x1003)
    assert image.code == b"\xc3" + emit_nops(15) + b"\xc3" + emit_nops(3)
    assert [(line.offset, line.size, line.comment) for line in image.lines] == [
        (0, 1, ""),
        (1, 8, "fill"),
        (9, 7, "fill"),
        (16, 1, ""),
        (17, 3, ""),
    ]


def test_data():
    image = assemble("here: .byte 1, -1, 0xff\n.word 0x1234\n.long 5, -1\n.quad here, 0xffffffffffffffff\nret", AT)
    want = "01ffff" "3412" "05000000ffffffff" "801300c0ffffffff" "ffffffffffffffff" "c3"
    assert image.code.hex() == want
    assert [line.text for line in image.lines][-2:] == [".quad here, 0xffffffffffffffff", "ret"]


def test_data_may_be_what_no_instruction_is():
    image = assemble("jmp over\n.byte 0x06, 0x06\nover: ret\n.quad 0x0606060606060606", AT)
    assert image.code.hex() == "eb02" "0606" "c3" + "06" * 8


def test_nothing():
    for text in ("", "\n\n", "; only a comment", ".phase save", "label:"):
        image = assemble(text, AT)
        assert (image.code, image.lines, len(image), image.end) == (b"", (), 0, AT)


def test_out_of_reach():
    for text in ("call far", "jmp far", "je far", "loop far", "mov rax, [rip + far]"):
        with pytest.raises(DisplacementError) as caught:
            assemble(f"nop\n{text}", AT, {"far": 0xFFFF888000000000}, name="stub")
        assert (caught.value.address, caught.value.target) == (AT + 1, 0xFFFF888000000000)
        assert caught.value.__notes__ == [f"stub:2:1: {text}"]


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_addresses_have_64_bits(address):
    with pytest.raises(AsmError, match="64-bit"):
        assemble("ret", address)


def test_the_address_space_ends():
    assert assemble("nop\nret", (1 << 64) - 2).end == 1 << 64
    with pytest.raises(AsmError, match="end of the address space"):
        assemble("nop\nnop\nret", (1 << 64) - 2)


def test_a_label_is_defined_once():
    with pytest.raises(AssemblySyntaxError) as caught:
        assemble("a: ret\n  a: ret")
    assert (caught.value.line, caught.value.column) == (2, 3)


@settings(max_examples=60)
@given(
    gaps=st.lists(st.integers(0, 140), min_size=2, max_size=12),
    jumps=st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["jmp", "je", "jg"])), min_size=12, max_size=12),
)
def test_relaxation_is_the_least_that_reaches(gaps, jumps):
    text = []
    for number, gap in enumerate(gaps):
        target, mnemonic = jumps[number]
        text += [f"l{number}:", f"{mnemonic} l{target % len(gaps)}", *["nop"] * gap]
    image = assemble("\n".join(text), AT)
    branches = [insn for insn in decode(image.code, AT) if insn.mnemonic != "nop"]
    for number, insn in enumerate(branches):
        target = int(insn.operands, 0)
        assert target == image.symbols[f"l{jumps[number][0] % len(gaps)}"]
        if insn.size > 2:
            # From a shorter branch the same target would be out of reach: nothing grew without need.
            distance = target - (insn.address + 2) - (insn.size - 2 if target > insn.address else 0)
            assert not -128 <= distance < 128
        if insn.mnemonic != "jmp":
            make = jcc_rel8 if insn.size == 2 else jcc_rel32
            assert insn.code == make(insn.mnemonic[1:], insn.address, target)
