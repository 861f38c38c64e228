"""ELF read as it stands."""

import random
import struct
from contextlib import suppress

import pytest

from elf_writer import EXEC, FUNC, NOBITS, REL, ElfWriter
from emu.elf.errors import ElfError
from emu.elf.reader import MAX_OBJECT_SIZE, SymbolType, read_elf


def small():
    writer = ElfWriter(machine=0x1234)
    text = writer.section("code", b"12345678", flags=EXEC)
    writer.section("zero", kind=NOBITS, size=100)
    name = writer.symbol("start", text, 0, 8, FUNC)
    writer.relocate(text, 4, name, 7)
    return writer


def test_sections_symbols_and_relocations():
    file = read_elf(small().bytes(), "small.o")
    assert (file.name, file.machine, file.type) == ("small.o", 0x1234, 1)
    code, zero, relocations = file.sections[1:4]
    assert (code.name, code.content, code.executable, code.size) == ("code", b"12345678", True, 8)
    assert (zero.content, zero.size, zero.executable) == (b"", 100, False)
    (symbol,) = file.symbols[1:]
    assert (symbol.name, symbol.section, symbol.size, symbol.type) == ("start", 1, 8, SymbolType.FUNC)
    assert relocations.type == REL
    (entry,) = file.relocations(relocations)
    assert (entry.offset, entry.type, file.symbols[entry.symbol], entry.addend) == (4, 7, symbol, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda raw: raw[:0], "not an ELF file"),
        (lambda raw: b"MZ" + raw[2:], "not an ELF file"),
        (lambda raw: raw[:200], "truncated"),
        (lambda raw: raw[:4] + b"\1" + raw[5:], "not 64-bit little-endian"),
        (lambda raw: raw[:5] + b"\2" + raw[6:], "ELF"),
        (lambda raw: raw[:60] + b"\xff\xff" + raw[62:], "damaged section headers"),
    ],
)
def test_what_is_no_such_file_is_refused(change, reason):
    with pytest.raises(ElfError, match=reason) as caught:
        read_elf(change(small().bytes()), "bad.o")
    assert str(caught.value).startswith("bad.o: ")


def test_sections_that_overlap_are_refused():
    raw = bytearray(small().bytes())
    (headers,) = struct.unpack_from("<Q", raw, 40)
    for section in range(2, 6):
        struct.pack_into("<IIQQQQ", raw, headers + 64 * section, 1, 1, 0, 0, 0, len(raw))
    with pytest.raises(ElfError, match="overlap"):
        read_elf(bytes(raw))


def test_a_relocation_of_no_symbol_is_refused():
    writer = small()
    writer.relocate(1, 0, 99, 1)
    file = read_elf(writer.bytes())
    with pytest.raises(ElfError, match="symbol 99 of 2"):
        file.relocations(file.sections[3])


def test_files_are_read_by_path(tmp_path):
    path = tmp_path / "small.o"
    path.write_bytes(small().bytes())
    assert read_elf(path).name == "small.o"
    with pytest.raises(ElfError, match=r"missing\.o: No such file"):
        read_elf(tmp_path / "missing.o")
    with pytest.raises(ElfError, match="not a regular file"):
        read_elf(tmp_path)
    assert len(small().bytes()) < MAX_OBJECT_SIZE


def test_damage_anywhere_is_a_typed_error():
    raw, randoms = small().bytes(), random.Random(3)
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(randoms.choice((1, 3))):
            damaged[randoms.randrange(len(raw))] = randoms.randrange(256)
        with suppress(ElfError):
            file = read_elf(bytes(damaged))
            for section in file.sections:
                file.relocations(section)
