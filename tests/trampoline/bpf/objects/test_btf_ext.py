"""``.BTF.ext``, written byte by byte."""

import struct

import pytest

from btf_writer import Writer
from trampoline.bpf.btf.ext import CoreKind, CoreRecord, FuncRecord, LineRecord, read_btf_ext
from trampoline.bpf.errors import ObjectError

BTF = Writer()
BTF.int("int", 4)
TEXT, FILE, LINE, ACCESS = (BTF.name(text) for text in ("fentry/f", "f.c", "return 0;" * 100, "0:1"))
TYPES = BTF.btf()


def table(*records, section=TEXT, size=None, count=None):
    words = len(records[0]) if records else 4
    size = 4 * words if size is None else size
    content = b"".join(struct.pack(f"<{words}I", *one).ljust(size, b"\xaa") for one in records)
    return struct.pack("<III", size, section, len(records) if count is None else count) + content


def ext(funcs=b"", lines=b"", core=b"", magic=0xEB9F, version=1, flags=0, header=32):
    places = [0, len(funcs), len(funcs), len(lines), len(funcs) + len(lines), len(core)]
    return struct.pack("<HBBI6I", magic, version, flags, header, *places) + funcs + lines + core


def test_records_by_section_and_slot():
    found = read_btf_ext(
        ext(table((0, 1)), table((16, FILE, LINE, 7 << 10 | 3), (0, FILE, 0, 5 << 10)), table((8, 1, ACCESS, 2))), TYPES
    )
    assert found.funcs == {"fentry/f": (FuncRecord(0, 1),)}
    assert found.lines == {"fentry/f": (LineRecord(0, FILE, 0, 5, 0), LineRecord(2, FILE, LINE, 7, 3))}
    assert found.core == {"fentry/f": (CoreRecord(1, 1, "0:1", CoreKind.FIELD_EXISTS),)}
    assert TYPES.string(LINE) == "return 0;" * 100


def test_longer_records_of_later_compilers():
    found = read_btf_ext(ext(table((8, 1), size=24)), TYPES)
    assert found.funcs == {"fentry/f": (FuncRecord(1, 1),)}


def test_an_old_header_has_no_relocations():
    raw = struct.pack("<HBBI4I", 0xEB9F, 1, 0, 24, 0, 20, 20, 0) + table((0, 1))
    assert read_btf_ext(raw, TYPES).core == {}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the header is cut off"),
        (ext(magic=0x9FEB), "begins with 0x9feb"),
        (ext(version=2), "version 2"),
        (ext(flags=1), "flags 0x1"),
        (ext(header=8), "a header of 8"),
        (ext(header=0xFFFFFFFF), "a header of"),
        (ext(table((0, 1)))[:-4], "func_info reaches byte"),
        (ext(table((0, 1), size=4)), "records of 4 bytes"),
        (ext(table((0, 1), size=9)), "records of 9 bytes"),
        (ext(table((0, 1), size=0x10000)), "records of 65536 bytes"),
        (ext(table((0, 1), count=0)), "has 0 records"),
        (ext(table((0, 1), count=0xFFFFFFFF)), "has 4294967295 records"),
        (ext(b"\0\0"), "cut off"),
        (ext(table((0, 1)) + b"\1\0\0"), "cut off"),
        (ext(table((0, 1), section=0xFFFF)), "string offset 65535"),
        (ext(table((4, 1))), "a function at byte 0x4"),
        (ext(core=table((0, 1, ACCESS, 13))), "unknown kind 13"),
        (ext(core=table((0, 1, 0xFFFFF, 1))), "string offset"),
    ],
)
def test_damage_is_refused(raw, reason):
    with pytest.raises(ObjectError, match=reason):
        read_btf_ext(raw, TYPES)
