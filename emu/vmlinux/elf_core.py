"""ELF cores of whole machines: QEMU's dump-guest-memory, /proc/vmcore, and either as ``.xz``."""

import lzma
import os
import struct

from emu.vmlinux.dump_errors import CorruptDump, OtherArchitecture, TruncatedDump
from emu.vmlinux.dump_notes import Note, parse_notes
from emu.vmlinux.physical_memory import PhysicalMemory, PhysicalRange, merge_ranges
from emu.vmlinux.scratch_file import unnamed_file, write_all

ELF_MAGIC = b"\x7fELF"
XZ_MAGIC = b"\xfd7zXZ\0"
_EM_X86_64, _ET_CORE = 62, 4
_PT_LOAD, _PT_NOTE = 1, 4
_PN_XNUM = 0xFFFF
_PIECE = 4 << 20


class ElfCore:
    """An ELF core: ``memory`` and ``notes``. The file is mapped, not read.

    Raises TruncatedDump, CorruptDump and OtherArchitecture.
    """

    def __init__(self, path: str, file: int) -> None:
        self.path = path
        size = os.fstat(file).st_size
        header = os.pread(file, 64, 0)
        if len(header) < 64:
            raise TruncatedDump(path, 64, size)
        if header[4] != 2 or header[5] != 1:
            raise OtherArchitecture(path, "a 32-bit or big-endian ELF core, not one of x86_64")
        kind, machine = struct.unpack_from("<HH", header, 16)
        if machine != _EM_X86_64:
            raise OtherArchitecture(path, f"an ELF core of machine {machine}, not of x86_64 ({_EM_X86_64})")
        if kind != _ET_CORE:
            raise CorruptDump(path, f"an ELF file of type {kind}, not a core ({_ET_CORE})")
        table, section_table = struct.unpack_from("<QQ", header, 32)
        entry_size, count = struct.unpack_from("<HH", header, 54)
        if count == _PN_XNUM:
            section = os.pread(file, 64, section_table)
            if len(section) < 64:
                raise TruncatedDump(path, section_table + 64, size)
            (count,) = struct.unpack_from("<I", section, 44)
        if entry_size < 56:
            raise CorruptDump(path, f"program headers of {entry_size} bytes")
        if table + entry_size * count > size:
            raise TruncatedDump(path, table + entry_size * count, size)
        headers = os.pread(file, entry_size * count, table)
        self.notes: list[Note] = []
        ranges = []
        for index in range(count):
            kind, _flags, offset, _virtual, physical, stored, _size, _align = struct.unpack_from(
                "<IIQQQQQQ", headers, entry_size * index
            )
            if kind not in (_PT_LOAD, _PT_NOTE) or not stored:
                continue
            if offset + stored > size:
                raise TruncatedDump(path, offset + stored, size)
            if kind == _PT_LOAD:
                ranges.append(PhysicalRange(physical, stored, offset))
            else:
                self.notes += parse_notes(os.pread(file, stored, offset))
        if not ranges:
            raise CorruptDump(path, "an ELF core without memory: no PT_LOAD segment")
        self.memory = PhysicalMemory(file, size, merge_ranges(ranges))


def unpack_xz(path: str) -> int:
    """Descriptor of an unnamed file with the content of an ``.xz`` file. CorruptDump, TruncatedDump."""
    file = unnamed_file()
    offset = 0
    try:
        with lzma.open(path, "rb") as packed:
            while piece := packed.read(_PIECE):
                write_all(file, piece, offset)
                offset += len(piece)
    except EOFError:
        os.close(file)
        raise TruncatedDump(path, offset + 1, offset) from None
    except lzma.LZMAError as error:
        os.close(file)
        raise CorruptDump(path, f"xz: {error}") from None
    return file
