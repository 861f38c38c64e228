"""Compressed kdump files (makedumpfile, QEMU's ``kdump-zlib``), flattened ones too.

The layout is ``struct disk_dump_header`` and ``struct kdump_sub_header`` of makedumpfile's diskdump_mod.h: a header
block, a sub-header, two bitmaps (memory that exists, pages that were dumped), then a descriptor of 24 bytes and the
compressed bytes for each dumped page. A flattened file is the same in pieces, each with its offset and size in big
endian.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module

from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.dump_errors import CorruptDump, MissingLibrary, OtherArchitecture, TruncatedDump
from emu.vmlinux.dump_notes import Note, parse_notes
from emu.vmlinux.physical_memory import PhysicalMemory, PhysicalRange, merge_ranges
from emu.vmlinux.scratch_file import unnamed_file, write_all

KDUMP_MAGIC = b"KDUMP   "
FLATTENED_MAGIC = b"makedumpfile"
_FLATTENED_HEADER = 4096
_FLATTENED_PIECE = struct.Struct(">qq")
_DESCRIPTOR = struct.Struct("<QIIQ")
_MACHINE_AT = 8 + 4 + 4 * 65
"""Offset of ``utsname.machine``."""
_GEOMETRY_AT = 8 + 4 + 390 + 6 + 16 + 4
"""Offset of ``block_size``: signature, version, utsname, padding, timestamp, status."""
_SUB_HEADER = struct.Struct("<QiiQQQQQQQQQQQ")
_ZLIB, _LZO, _SNAPPY, _INCOMPLETE, _ZSTD = 1, 2, 4, 8, 0x20
_COMPRESSED = _ZLIB | _LZO | _SNAPPY | _ZSTD
_LIBRARIES = {_LZO: ("lzo", "python-lzo", "lzo"), _SNAPPY: ("snappy", "python-snappy", "snappy"),
              _ZSTD: ("zstd", "zstandard", "zstandard")}  # fmt: skip
_TOGETHER = 1024
"""Pages that are written at once."""

Decompress = Callable[[bytes], bytes]


class Kdump:
    """A compressed kdump file: ``memory`` and ``notes``. All pages are unpacked at once into an unnamed file.

    Raises TruncatedDump, CorruptDump, OtherArchitecture, and MissingLibrary for pages compressed with lzo, snappy or
    zstd where no library for these is installed.
    """

    def __init__(self, path: str, file: int) -> None:
        self.path = path
        flattened = os.pread(file, len(FLATTENED_MAGIC), 0) == FLATTENED_MAGIC
        self._file = _unflatten(path, file) if flattened else os.dup(file)
        try:
            self._size = os.fstat(self._file).st_size
            self._decompress: dict[int, Decompress] = {_ZLIB: zlib.decompress}
            self._open()
        finally:
            os.close(self._file)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file, size, offset) if offset < self._size else b""
        if len(data) < size:
            raise TruncatedDump(self.path, offset + size, self._size)
        return data

    def _open(self) -> None:
        header = self._read(0, _GEOMETRY_AT + 20)
        if header[:8] != KDUMP_MAGIC:
            raise CorruptDump(self.path, "a flattened file that does not contain a kdump file")
        machine = header[_MACHINE_AT : _MACHINE_AT + 65].split(b"\0")[0].decode("latin1")
        if machine not in ("x86_64", "Unknown", ""):
            raise OtherArchitecture(self.path, f"a memory image of a {machine!r} machine, not of x86_64")
        block, sub_blocks, bitmap_blocks, _max_page = struct.unpack_from("<iiII", header, _GEOMETRY_AT)
        if block != PAGE_SIZE or sub_blocks < 1 or bitmap_blocks < 2 or bitmap_blocks & 1:
            raise CorruptDump(
                self.path, f"blocks of {block} bytes, {sub_blocks} of sub-header, {bitmap_blocks} of bitmaps"
            )
        sub = _SUB_HEADER.unpack(self._read(block, _SUB_HEADER.size))
        info_at, info_size, notes_at, notes_size = sub[5:9]
        self.notes: list[Note] = list(parse_notes(self._read(notes_at, notes_size))) if notes_size else []
        if info_size:
            self.notes.append(Note("VMCOREINFO", 0, self._read(info_at, info_size)))
        half = bitmap_blocks // 2 * block
        dumped = self._read((1 + sub_blocks) * block + half, half)
        self._unpack(list(_set_bits(dumped)), (1 + sub_blocks + bitmap_blocks) * block)

    def _unpack(self, frames: list[int], descriptors_at: int) -> None:
        if not frames:
            raise CorruptDump(self.path, "a kdump file without pages")
        descriptors = self._read(descriptors_at, _DESCRIPTOR.size * len(frames))
        pages = unnamed_file()
        try:
            pending: list[bytes] = []
            written = 0
            for frame, (offset, size, flags, _) in zip(frames, _DESCRIPTOR.iter_unpack(descriptors), strict=True):
                pending.append(self._page(frame, self._read(offset, size), flags))
                if len(pending) == _TOGETHER:
                    write_all(pages, b"".join(pending), written)
                    written += PAGE_SIZE * len(pending)
                    pending.clear()
            write_all(pages, b"".join(pending), written)
            ranges = [
                PhysicalRange(frame * PAGE_SIZE, PAGE_SIZE, index * PAGE_SIZE) for index, frame in enumerate(frames)
            ]
            self.memory = PhysicalMemory(pages, len(frames) * PAGE_SIZE, merge_ranges(ranges))
        finally:
            os.close(pages)

    def _page(self, frame: int, data: bytes, flags: int) -> bytes:
        kind = flags & _COMPRESSED
        if kind:
            try:
                data = self._decompressor(kind)(data)
            except MissingLibrary:
                raise
            except Exception as error:  # each library has an exception of its own
                raise CorruptDump(self.path, f"page {frame * PAGE_SIZE:#x} can't be unpacked: {error}") from None
        if len(data) != PAGE_SIZE:
            raise CorruptDump(self.path, f"page {frame * PAGE_SIZE:#x} has {len(data)} bytes")
        return data

    def _decompressor(self, kind: int) -> Decompress:
        found = self._decompress.get(kind)
        if found is None:
            if kind not in _LIBRARIES:
                raise CorruptDump(self.path, f"a page with flags {kind:#x}")
            compression, package, module = _LIBRARIES[kind]
            try:
                library = import_module(module)
            except ImportError:
                raise MissingLibrary(self.path, compression, package) from None
            if kind == _LZO:
                found = lambda data: library.decompress(data, False, PAGE_SIZE)  # noqa: E731
            elif kind == _SNAPPY:
                found = library.uncompress
            else:
                found = library.ZstdDecompressor().decompress
            self._decompress[kind] = found
        return found


def _set_bits(bitmap: bytes) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    at = 0
    for word in memoryview(bitmap).cast("Q"):
        if word == (1 << 64) - 1:
            yield from range(at, at + 64)
        else:
            while word:
                low = word & -word
                yield at + low.bit_length() - 1
                word ^= low
        at += 64


def _unflatten(path: str, file: int) -> int:
    """Descriptor of an unnamed file with the pieces of a flattened file where they belong."""
    size = os.fstat(file).st_size
    at = _FLATTENED_HEADER
    whole = unnamed_file()
    try:
        while True:
            header = os.pread(file, _FLATTENED_PIECE.size, at)
            if len(header) < _FLATTENED_PIECE.size:
                raise TruncatedDump(path, at + _FLATTENED_PIECE.size, size)
            offset, length = _FLATTENED_PIECE.unpack(header)
            at += _FLATTENED_PIECE.size
            if offset < 0:
                return whole
            if length < 0 or at + length > size:
                raise TruncatedDump(path, at + length, size)
            write_all(whole, os.pread(file, length, at), offset)
            at += length
    except BaseException:
        os.close(whole)
        raise
