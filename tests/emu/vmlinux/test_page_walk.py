"""Page tables of 4 and 5 levels: small and large pages, halves of isolated tables, pages that the dump lacks."""

import pytest

from dump_writer import PAGE, Tables, elf_core
from emu.errors import NotMapped
from emu.vmlinux.dump import open_dump
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.page_walk import PageTables, halves

HIGH = {4: 0xFFFF888000000000, 5: 0xFF11000000000000}


def _memory(tmp_path, ram):
    path = tmp_path / "image"
    path.write_bytes(elf_core([(0, bytes(ram))]))
    return open_dump(path).memory


@pytest.mark.parametrize("levels", [4, 5])
def test_pages_of_both_sizes_are_found(tmp_path, levels):
    ram = bytearray(4 << 20)
    tables = Tables(ram, 0x1000, 0x3000, levels)
    tables.map(HIGH[levels], 0x80000)
    tables.map(HIGH[levels] + PAGE, 0x40000)
    tables.map(0xFFFFFFFF81000000, 0x200000, huge=True)
    ram[0x80FFE:0x81000], ram[0x40000:0x40002] = b"en", b"ds"
    ram[0x234567] = 9
    guest = PageTables(_memory(tmp_path, ram), 0x1000, levels)
    assert guest.read(HIGH[levels] + 0xFFE, 4) == b"ends"
    assert guest.physical(0xFFFFFFFF81034567) == 0x234567
    guest.write(HIGH[levels] + 0xFFF, b"xy")
    assert guest.text(HIGH[levels] + 0xFFE) == "exys"


def test_what_is_not_mapped_and_what_is_not_in_the_dump_are_told_apart(tmp_path):
    ram = bytearray(1 << 20)
    tables = Tables(ram, 0x1000, 0x3000)
    tables.map(HIGH[4], 0x80000)
    tables.map(HIGH[4] + PAGE, 64 << 20)
    guest = PageTables(_memory(tmp_path, ram), 0x1000, 4)
    with pytest.raises(NotMapped) as missing:
        guest.read(HIGH[4] + 2 * PAGE, 1)
    assert missing.value.address == HIGH[4] + 2 * PAGE
    with pytest.raises(MissingPage, match=f"0x4000000 .guest address {HIGH[4] + PAGE:#x}"):
        guest.read(HIGH[4] + PAGE - 1, 2)
    assert guest.read_sparse(HIGH[4] + PAGE - 1, 3) == bytes(3)
    assert [guest.is_mapped(HIGH[4] + offset) for offset in (0, PAGE, 2 * PAGE)] == [True, False, False]


def test_bits_of_memory_encryption_are_no_part_of_an_address(tmp_path):
    ram = bytearray(1 << 20)
    Tables(ram, 0x1000, 0x3000).map(HIGH[4], 0x80000 | 1 << 47)
    assert PageTables(_memory(tmp_path, ram), 0x1000, 4, ignored=1 << 47).physical(HIGH[4] + 3) == 0x80003


def test_translations_are_remembered_until_told_otherwise(tmp_path):
    ram = bytearray(1 << 20)
    Tables(ram, 0x1000, 0x3000).map(HIGH[4], 0x80000)
    memory = _memory(tmp_path, ram)
    guest = PageTables(memory, 0x1000, 4)
    assert guest.is_mapped(HIGH[4])
    memory.write(0x1000, bytes(PAGE))
    assert guest.is_mapped(HIGH[4])
    guest.forget()
    assert not guest.is_mapped(HIGH[4])


def test_the_kernel_half_is_the_other_one_of_two_pages():
    assert halves(0x25E7ABC) == (0x25E7000, 0x25E6000)
