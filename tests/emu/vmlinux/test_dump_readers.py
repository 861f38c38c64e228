"""ELF cores and kdump files: what they hold, and typed errors for those that are damaged."""

import os
import struct

import pytest

from dump_writer import PAGE, elf_core, flattened, kdump, note, qemu_cpu, vmcoreinfo, xz
from emu.vmlinux import kdump as kdump_reader
from emu.vmlinux.dump import open_dump
from emu.vmlinux.dump_errors import (
    CorruptDump,
    MissingLibrary,
    MissingPage,
    OtherArchitecture,
    TruncatedDump,
    UnknownFormat,
)

_INFO = vmcoreinfo(**{"SYMBOL(init_top_pgt)": "ffffffff81000000", "NUMBER(phys_base)": "0", "KERNELOFFSET": "a000000"})
_NOTES = note("CORE", 1, bytes(336)) + note("QEMU", 0, qemu_cpu({"rip": 0x1234, "rsp": 7}))
_PAGES = {0: b"a" * PAGE, 1: os.urandom(PAGE), 5: b"five" * 1024}


@pytest.fixture
def opened(tmp_path):
    def open_bytes(data):
        path = tmp_path / "image"
        path.write_bytes(data)
        return open_dump(path)

    return open_bytes


@pytest.mark.parametrize("pack", [bytes, xz], ids=["plain", "xz"])
def test_an_elf_core_gives_memory_registers_and_vmcoreinfo(opened, pack):
    notes = _NOTES + note("VMCOREINFO", 0, _INFO)
    dump = opened(pack(elf_core([(0x5000, _PAGES[5]), (0, _PAGES[0] + _PAGES[1])], notes)))
    assert dump.memory.read(0xFFF, 2) == b"a" + _PAGES[1][:1]
    assert dump.memory.read(0x5000, 8) == b"fivefive"
    assert dump.cpus[0].registers["rip"] == 0x1234
    assert (dump.info.release, dump.info.kaslr_offset, dump.info_from) == ("6.99.0-test", 0xA000000, "note")


@pytest.mark.parametrize("shape", [bytes, flattened], ids=["plain", "flattened"])
def test_a_kdump_file_gives_the_same(opened, shape):
    dump = opened(shape(kdump(_PAGES, notes=_NOTES, info=_INFO)))
    assert {number: dump.memory.read(number * PAGE, PAGE) for number in _PAGES} == _PAGES
    assert dump.cpus[0].registers["rsp"] == 7
    assert dump.info.symbol("init_top_pgt") == 0xFFFFFFFF81000000


def test_vmcoreinfo_is_found_in_memory_where_no_note_holds_it(opened):
    decoy = b"OSRELEASE=6.1\nthis is a log line\n".ljust(PAGE, b"\0")
    dump = opened(elf_core([(0, decoy + bytes(100) + _INFO.ljust(2 * PAGE - 100, b"\0"))], _NOTES))
    assert (dump.info.number("phys_base"), dump.info_from) == (0, "search")


def test_memory_that_is_listed_twice_is_read_once(opened):
    dump = opened(elf_core([(0, b"a" * 2 * PAGE), (PAGE, b"b" * 2 * PAGE)]))
    assert [(one.address, one.size) for one in dump.memory.ranges] == [(0, 2 * PAGE), (2 * PAGE, PAGE)]
    assert dump.memory.read(2 * PAGE - 1, 2) == b"ab"


def test_a_page_that_is_not_in_the_dump_is_named(opened):
    memory = opened(kdump(_PAGES)).memory
    with pytest.raises(MissingPage, match="physical page 0x2000"):
        memory.read(2 * PAGE - 4, 8)
    with pytest.raises(MissingPage):
        memory.write(3 * PAGE, b"x")
    assert not memory.has(4 * PAGE)


def test_writes_do_not_reach_the_file_and_are_undone(opened, tmp_path):
    data = elf_core([(0, bytes(4 * PAGE))])
    memory = opened(data).memory
    memory.write(PAGE + 5, b"changed")
    kept = memory.changed_pages()
    memory.write(3 * PAGE, b"later")
    memory.restore(kept)
    assert (memory.read(PAGE + 5, 7), memory.read(3 * PAGE, 5)) == (b"changed", bytes(5))
    memory.reset()
    assert memory.read(0, 4 * PAGE) == bytes(4 * PAGE)
    assert memory.changed_pages() == {}
    assert (tmp_path / "image").read_bytes() == data


def test_kernels_own_notes_give_registers_without_control_registers(opened):
    status = bytearray(336)
    struct.pack_into("<Q", status, 112 + 8 * 16, 0xFFFFFFFF81234567)
    struct.pack_into("<Q", status, 112 + 8 * 17, 0x10)
    dump = opened(elf_core([(0, bytes(PAGE))], note("CORE", 1, bytes(status))))
    assert dump.cpus[0].registers["rip"] == 0xFFFFFFFF81234567
    assert (dump.cpus[0].control, dump.cpus[0].in_user_mode) == ((), False)


_CORE = elf_core([(0, bytes(4 * PAGE))], _NOTES)
_KDUMP = kdump(_PAGES, notes=_NOTES, info=_INFO)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", UnknownFormat, "neither an ELF core nor a kdump"),
        (b"MDMP" * 20, UnknownFormat, "4d 44 4d 50"),
        (_CORE[:40], TruncatedDump, "the file ends at 0x28"),
        (_CORE[:100], TruncatedDump, "up to"),
        (_CORE[:-1], TruncatedDump, "the file ends at"),
        (elf_core([(0, bytes(PAGE))], machine=183), OtherArchitecture, "machine 183"),
        (elf_core([(0, bytes(PAGE))], bits=1), OtherArchitecture, "32-bit"),
        (elf_core([(0, bytes(PAGE))], kind=2), CorruptDump, "type 2"),
        (elf_core([], _NOTES), CorruptDump, "without memory"),
        (xz(_CORE)[:-40], TruncatedDump, "the file ends at"),
        (b"\xfd7zXZ\0" + bytes(50), CorruptDump, "xz"),
        (_KDUMP[:PAGE], TruncatedDump, "the file ends at 0x1000"),
        (_KDUMP[:-10], TruncatedDump, "the file ends at"),
        (flattened(_KDUMP)[:-40], TruncatedDump, "the file ends at"),
        (flattened(b"nothing" * 1000), CorruptDump, "does not contain a kdump"),
        (kdump(_PAGES, machine="aarch64"), OtherArchitecture, "aarch64"),
        (kdump(_PAGES, block=65536), CorruptDump, "blocks of 65536"),
        (kdump({}), CorruptDump, "without pages"),
        (kdump({0: bytes(PAGE)}, compress=lambda page: b"no zlib stream"), CorruptDump, "page 0x0 can't be unpacked"),
        (kdump({0: bytes(PAGE)}, compress=lambda page: page[:100], flags=0), CorruptDump, "has 100 bytes"),
    ],
)
def test_damage_is_refused_with_what_and_where(opened, data, error, says):
    with pytest.raises(error, match=says):
        opened(data)


@pytest.mark.parametrize(("flags", "library"), [(2, "python-lzo"), (4, "python-snappy"), (0x20, "zstandard")])
def test_pages_that_need_a_library_name_it(opened, monkeypatch, flags, library):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(kdump_reader, "import_module", refuse)
    with pytest.raises(MissingLibrary, match=library):
        opened(kdump({0: bytes(PAGE)}, compress=lambda page: b"packed", flags=flags))
