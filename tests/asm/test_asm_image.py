"""Images and listings."""

import json
import subprocess
import sys

import pytest

from asm import AsmError, Image, assemble, decode, image_of, instruction_count, instruction_starts

AT = 0xFFFFFFFFC0001380
TEXT = """
.phase entry
stub: .Lentry:
  endbr64
  nop5
.phase save
  push rbp       ; the caller's frame
  mov rbp, rsp   # ours
.phase enter
  call enter
.phase none
  je .Lout
.Lout:
  leave
  ret
"""
SYMBOLS = {"enter": 0xFFFFFFFF8162A350}


@pytest.fixture
def image():
    return assemble(TEXT, AT, SYMBOLS, name="stub")


def test_lines(image):
    assert [(line.offset, line.size, line.text, line.comment, line.phase) for line in image.lines] == [
        (0, 4, "endbr64", "", "entry"),
        (4, 5, "nop dword ptr [rax + rax]", "", "entry"),
        (9, 1, "push rbp", "the caller's frame", "save"),
        (10, 3, "mov rbp, rsp", "ours", "save"),
        (13, 5, "call enter", "", "enter"),
        (18, 2, "je .Lout", "", None),
        (20, 1, "leave", "", None),
        (21, 1, "ret", "", None),
    ]
    assert image.symbols == {"stub": AT, ".Lentry": AT, ".Lout": AT + 20}
    assert (len(image), image.end, image.name, image.address) == (22, AT + 22, "stub", AT)


def test_line_at(image):
    for line in image.lines:
        for address in range(AT + line.offset, AT + line.offset + line.size):
            assert image.line_at(address) is line
    for address in (AT - 1, image.end, 0):
        assert image.line_at(address) is None


def test_the_same_text_elsewhere_in_other_phases(image):
    again = assemble(".phase exit\nnop\npush rbp ; the caller's frame\n" + TEXT, AT + 1, SYMBOLS)
    assert [(line.text, line.phase) for line in again.lines][:2] == [("nop", "exit"), ("push rbp", "exit")]
    assert [line.offset - 2 for line in again.lines[2:]] == [line.offset for line in image.lines]
    assert assemble(TEXT, AT, SYMBOLS, name="stub") == image


def test_images_are_values(image):
    assert hash(image) == hash(assemble(TEXT, AT, SYMBOLS, name="stub"))
    with pytest.raises(TypeError):
        image.symbols["stub"] = 0
    with pytest.raises(AttributeError):
        image.code = b""
    with pytest.raises(AttributeError):
        image.lines[0].text = ""


def test_listing(image):
    assert image.listing() == (
        f"stub: {AT:#x}, 22 bytes, 8 instructions\n"
        "stub:\n"
        ".Lentry:\n"
        "0000  f30f1efa              entry    endbr64\n"
        "0004  0f1f440000            entry    nop dword ptr [rax + rax]\n"
        "0009  55                    save     push rbp                                  ; the caller's frame\n"
        "000a  4889e5                save     mov rbp, rsp                              ; ours\n"
        "000d  e8be8f62c1            enter    call enter\n"
        "0012  7400                           je .Lout\n"
        ".Lout:\n"
        "0014  c9                             leave\n"
        "0015  c3                             ret\n"
    )


def test_listing_names_addresses(image):
    foreign = image_of(image.code, AT, "foreign")
    listing = foreign.listing(names={SYMBOLS["enter"]: "__bpf_prog_enter_recur"})
    assert "call 0xffffffff8162a350 <__bpf_prog_enter_recur>" in listing
    assert "entry" not in listing


def test_listing_in_color_says_the_same(image):
    colored = image.listing(color=True, phase_colors={"save": "\x1b[36m"})
    assert "\x1b[36msave\x1b[0m" in colored
    assert "\x1b[" not in image.listing()
    plain = colored
    for code in {part[: part.index("m") + 1] for part in colored.split("\x1b")[1:]}:
        plain = plain.replace("\x1b" + code, "")
    assert plain == image.listing()


def test_a_phase_is_any_word_and_the_column_as_wide_as_it():
    image = assemble(".phase something_long\nnop\n.phase b\nret\n")
    assert [line.phase for line in image.lines] == ["something_long", "b"]
    assert [row.index(row.split()[-1]) for row in image.listing().splitlines()[1:]] == [44, 44]


def test_json(image):
    data = json.loads(json.dumps(image.to_json()))
    assert data["address"] == hex(AT)
    assert data["symbols"]["stub"] == hex(AT)
    assert bytes.fromhex(data["code"]) == image.code
    assert "".join(line["code"] for line in data["lines"]) == data["code"]
    assert data["lines"][2] == {
        "offset": 9,
        "size": 1,
        "code": "55",
        "text": "push rbp",
        "comment": "the caller's frame",
        "phase": "save",
    }
    assert data["lines"][-1]["phase"] is None


def test_foreign_bytes(image):
    foreign = image_of(image.code, AT, "foreign")
    assert isinstance(foreign, Image)
    assert foreign.code == image.code
    assert [line.offset for line in foreign.lines] == [line.offset for line in image.lines]
    assert not foreign.symbols
    assert instruction_starts(image.code, AT) == [AT + line.offset for line in image.lines]
    assert instruction_count(image.code) == 8


@pytest.mark.parametrize("call", [decode, instruction_starts, lambda code, _: instruction_count(code)])
@pytest.mark.parametrize(("code", "where"), [("c306", 1), ("90e80000", 1), ("06", 0), ("0f1f4400", 0)])
def test_undecodable_bytes(call, code, where):
    address = 0 if call not in (decode, instruction_starts) else AT
    with pytest.raises(AsmError, match=f"{address + where:#x}"):
        call(bytes.fromhex(code), AT)


def test_no_bytes():
    assert decode(b"", AT) == []
    assert instruction_count(b"") == 0


def test_importing_needs_no_engine():
    code = "import sys, asm; print(sorted({'keystone', 'capstone'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_same_text_is_made_anew_where_a_symbol_it_uses_has_moved():
    text = "mov eax, used\ncall target\nret"
    symbols = {"used": 1, "target": 0x2000, "other": 5}
    first = assemble(text, 0x1000, symbols)
    assert assemble(text, 0x1000, symbols | {"other": 6}) == first
    assert assemble(text, 0x1000, symbols | {"used": 2}).code[1] == 2
    assert assemble(text, 0x1000, symbols | {"target": 0x3000}).code != first.code
    assert assemble(text, 0x1001, symbols).address == 0x1001
    assert assemble(text, 0x1000, symbols) == first
    with pytest.raises(AsmError, match="unknown symbol"):
        assemble(text, 0x1000, {"used": 1})
