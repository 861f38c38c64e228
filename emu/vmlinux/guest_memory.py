"""Memory of an unbooted kernel: a few large regions, the page tables that map them, reads and writes by guest address.

Every region is private anonymous memory of this process, given to the engine by pointer: pages are committed when they
are touched, several vCPUs share them, and ``os.fork()`` is a checkpoint. Each stands at its own guest address and, as on
a booted machine, in the direct map. Data is NX: the engine is many times quicker where no data page can be executed.
"""

import ctypes
import mmap
import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from emu.errors import NotMapped

__all__ = ["DIRECT_MAP", "PAGE", "GuestMemory", "Region"]

PAGE = 4096
LARGE_PAGE = 2 << 20
DIRECT_MAP = 0xFFFF888000000000
"""``PAGE_OFFSET`` without KASLR, four-level paging."""
_PRESENT_WRITABLE, _LARGE, _NX = 0x63, 0x80, 1 << 63
_TABLES = 0x90000000
_TABLES_SIZE = 16 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """Guest memory in one piece: its name, guest address, physical address, size in bytes."""

    name: str
    address: int
    physical: int
    size: int
    executable: bool = False


class _Backing:
    """A region's bytes in this process."""

    __slots__ = ("buffer", "pointer", "region")

    def __init__(self, region: Region) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.region = region
        self.buffer = mmap.mmap(-1, region.size, flags=flags)
        self.pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))


class GuestMemory:
    """Regions at guest addresses. Addresses that nothing is mapped at raise :class:`emu.errors.NotMapped`."""

    def __init__(self, regions: Iterable[Region]) -> None:
        tables = Region("page tables", DIRECT_MAP + _TABLES, _TABLES, _TABLES_SIZE)
        self.regions = (*regions, tables)
        self.backings = tuple(_Backing(region) for region in self.regions)
        windows = [(b.region.address, b.region.size, b.buffer, 0) for b in self.backings]
        windows += [(DIRECT_MAP + b.region.physical, b.region.size, b.buffer, 0) for b in self.backings[:-1]]
        self._windows = sorted(windows, key=lambda window: window[0])
        self._starts = [window[0] for window in self._windows]
        self._tables = self.backings[-1].buffer
        self._next_table = _TABLES + PAGE
        self.mapped_pages: dict[int, int] = {}
        """Guest page to the address of the page that it shows: what ``vmap`` made."""

    @property
    def root(self) -> int:
        """CR3: the physical address of the top page table."""
        return _TABLES

    # Bytes ----------------------------------------------------------------------------------------------------------

    def _place(self, address: int, size: int) -> tuple[mmap.mmap, int]:
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            start, length, buffer, _ = self._windows[index]
            offset = address - start
            if offset + size <= length:
                return buffer, offset
        page = self.mapped_pages.get(address & -PAGE)
        if page is not None and (address & PAGE - 1) + size <= PAGE:
            return self._place(page + (address & PAGE - 1), size)
        raise NotMapped(address)

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a guest address; a read must lie in one region, or in one page of a ``vmap``."""
        buffer, offset = self._place(address, size)
        return buffer[offset : offset + size]

    def write(self, address: int, content: bytes) -> None:
        """Change bytes. Code that an engine has translated is to be thrown away by ``Vcpu.forget``."""
        buffer, offset = self._place(address, len(content))
        buffer[offset : offset + len(content)] = content

    def u64(self, address: int) -> int:
        """A 64-bit word."""
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        """A 32-bit word."""
        return int.from_bytes(self.read(address, 4), "little")

    def write_u64(self, address: int, value: int) -> None:
        """Store a 64-bit word; negative numbers as two's complement."""
        self.write(address, (value & (1 << 64) - 1).to_bytes(8, "little"))

    def write_u32(self, address: int, value: int) -> None:
        """Store a 32-bit word; negative numbers as two's complement."""
        self.write(address, (value & 0xFFFFFFFF).to_bytes(4, "little"))

    def text(self, address: int, most: int = 16 << 20) -> str:
        """A string that ends with NUL, of at most ``most`` bytes, bytes that are no UTF-8 replaced."""
        found = bytearray()
        while len(found) < most:
            at = address + len(found)
            chunk = self.read(at, min(most - len(found), PAGE - (at & PAGE - 1)))
            end = chunk.find(b"\0")
            found += chunk if end < 0 else chunk[:end]
            if end >= 0:
                break
        return found.decode("utf-8", "replace")

    # Page tables ----------------------------------------------------------------------------------------------------

    def map_regions(self, text: Iterable[tuple[int, int]]) -> None:
        """Write the page tables: each region at its address and in the direct map, NX unless it is executable.

        ``text`` are ranges (first byte, end) of executable pages within regions that are not.
        """
        by_page: dict[int, set[int]] = {}
        for first, end in text:
            for page in range(first & -PAGE, end, PAGE):
                by_page.setdefault(page & -LARGE_PAGE, set()).add(page)
        for region in self.regions[:-1]:
            nx = 0 if region.executable else _NX
            for offset in range(0, region.size, LARGE_PAGE):
                at, physical = region.address + offset, region.physical + offset
                if at in by_page:
                    pages = by_page[at]
                    entries = [
                        physical + low | _PRESENT_WRITABLE | (0 if at + low in pages else _NX)
                        for low in range(0, LARGE_PAGE, PAGE)
                    ]
                    table = self._table(at)
                    self._tables[table - _TABLES : table - _TABLES + PAGE] = struct.pack("<512Q", *entries)
                else:
                    self._set(self._entry(at, 2), physical | _PRESENT_WRITABLE | _LARGE | nx)
                self._set(self._entry(DIRECT_MAP + physical, 2), physical | _PRESENT_WRITABLE | _LARGE | _NX)

    def map_page(self, address: int, target: int) -> None:
        """Show the page at guest address ``target`` at ``address`` too (``vmap``). The vCPUs' TLBs are not flushed."""
        index = bisect_right(self._starts, target) - 1
        start, _, buffer, _ = self._windows[index]
        physical = next(b.region.physical for b in self.backings if b.buffer is buffer) + (target - start & -PAGE)
        table = self._table(address)
        self._set(table + 8 * (address >> 12 & 511), physical | _PRESENT_WRITABLE | _NX)
        self.mapped_pages[address & -PAGE] = target & -PAGE

    def _table(self, address: int) -> int:
        """Physical address of the lowest-level table for an address."""
        return self._below(self._entry(address, 2))

    def _entry(self, address: int, levels: int) -> int:
        """Physical address of the entry that is ``levels`` below the top for an address."""
        table = _TABLES
        for level in range(levels):
            table = self._below(table + 8 * (address >> 39 - 9 * level & 511))
        return table + 8 * (address >> 39 - 9 * levels & 511)

    def _below(self, entry: int) -> int:
        """The table that an entry refers to, made where there is none."""
        offset = entry - _TABLES
        found = int.from_bytes(self._tables[offset : offset + 8], "little")
        if not found & 1:
            if self._next_table >= _TABLES + _TABLES_SIZE:
                raise MemoryError("the page tables of the unbooted kernel are full")
            found = self._next_table | _PRESENT_WRITABLE
            self._next_table += PAGE
            self._set(entry, found)
        return found & 0x000FFFFFFFFFF000

    def _set(self, entry: int, value: int) -> None:
        offset = entry - _TABLES
        self._tables[offset : offset + 8] = value.to_bytes(8, "little")

    # State ----------------------------------------------------------------------------------------------------------

    def bookkeeping(self) -> dict[str, object]:
        """What belongs to the memory beside its bytes, as plain values."""
        return {"next_table": self._next_table, "mapped_pages": sorted(self.mapped_pages.items())}

    def restore_bookkeeping(self, saved: dict[str, object]) -> None:
        """Set what ``bookkeeping`` gave."""
        next_table, pages = saved["next_table"], saved["mapped_pages"]
        assert isinstance(next_table, int)
        assert isinstance(pages, list)
        self._next_table = next_table
        self.mapped_pages = {int(page): int(target) for page, target in pages}
