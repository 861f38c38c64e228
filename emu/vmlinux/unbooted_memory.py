"""Memory of an unbooted kernel: where each region stands, and the page tables that map it.

Every region stands at its own guest address and, as on a booted machine, in the direct map. Data is NX: the engine is
many times quicker where no data page can be executed. Nothing is read-only. The bytes are private pages of a file: an
empty one, or one that holds a prepared state.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from emu.machine.address_map import PAGE_MASK, PAGE_SIZE
from emu.vmlinux.floor.state import CLASSES, HEAP, HEAP_SIZE, VMEMMAP
from emu.vmlinux.page_walk import HUGE, NX, PRESENT, PageTables
from emu.vmlinux.physical_memory import PhysicalMemory, PhysicalRange

__all__ = [
    "DIRECT_MAP",
    "IMAGE",
    "IMAGE_SIZE",
    "MODULES",
    "MODULES_SIZE",
    "PERCPU_SIZE",
    "REGIONS",
    "SIZE",
    "STACKS",
    "USER",
    "USER_SIZE",
    "Region",
    "UnbootedMemory",
    "percpu_start",
]

DIRECT_MAP = 0xFFFF888000000000
"""``PAGE_OFFSET`` without KASLR, four-level paging."""
IMAGE, IMAGE_SIZE = 0xFFFFFFFF81000000, 256 << 20
MODULES, MODULES_SIZE = 0xFFFFFFFFC0000000, 0x1F000000
STACKS, _STACKS_SIZE = 0xFFFFC90000000000, 2 << 20
USER, USER_SIZE = 0x10000000, 64 << 20
PERCPU_SIZE, _MOST_CPUS = 16 << 20, 8
_LARGE_PAGE = 2 << 20
_ENTRY = PRESENT | 0x62  # writable, accessed, dirty
_TABLES, _TABLES_SIZE = 0x90000000, 16 << 20
_NEXT_TABLE = _TABLES + _TABLES_SIZE - 8
"""Physical address of the word that says where the next page table goes: part of the state like the tables."""
_PERCPU = 0x40000000


@dataclass(frozen=True, slots=True)
class Region:
    """Memory in one piece: guest address, physical address, size in bytes."""

    name: str
    address: int
    physical: int
    size: int
    executable: bool = False


REGIONS = (
    Region("image", IMAGE, 0x1000000, IMAGE_SIZE),
    Region("modules", MODULES, 0x20000000, MODULES_SIZE, executable=True),
    Region("per-CPU", DIRECT_MAP + _PERCPU, _PERCPU, PERCPU_SIZE * _MOST_CPUS),
    Region("stacks", STACKS, 0x60000000, _STACKS_SIZE),
    Region("user", USER, 0x70000000, USER_SIZE),
    Region("floor", CLASSES, 0x78000000, (HEAP_SIZE >> 6) + _LARGE_PAGE),
    Region("pages", VMEMMAP, 0x80000000, HEAP_SIZE >> 6),
    Region("page tables", DIRECT_MAP + _TABLES, _TABLES, _TABLES_SIZE),
    Region("heap", HEAP, HEAP - DIRECT_MAP, HEAP_SIZE),
)
SIZE = sum(region.size for region in REGIONS)
"""Bytes of the file that holds all regions, in this order."""


def percpu_start(cpu: int) -> int:
    """Guest address of a CPU's copy of the per-CPU section."""
    return DIRECT_MAP + _PERCPU + cpu * PERCPU_SIZE


class UnbootedMemory(PageTables):
    """Guest memory of an unbooted kernel, whose page tables are written here."""

    def __init__(self, file: int) -> None:
        ranges, offset = [], 0
        for region in REGIONS:
            ranges.append(PhysicalRange(region.physical, region.size, offset))
            offset += region.size
        super().__init__(PhysicalMemory(file, SIZE, ranges), _TABLES, 4)

    def write_u64(self, address: int, value: int) -> None:
        """Store a 64-bit word; negative numbers as two's complement."""
        self.write(address, (value & (1 << 64) - 1).to_bytes(8, "little"))

    def write_u32(self, address: int, value: int) -> None:
        """Store a 32-bit word; negative numbers as two's complement."""
        self.write(address, (value & 0xFFFFFFFF).to_bytes(4, "little"))

    def map_regions(self, text: Iterable[tuple[int, int]]) -> None:
        """Write the page tables: each region at its address and in the direct map, NX unless it is executable.

        ``text`` are ranges (first byte, end) of executable pages within regions that are not.
        """
        self._write_word(_NEXT_TABLE, _TABLES + PAGE_SIZE)
        by_page: dict[int, set[int]] = {}
        for first, end in text:
            for page in range(first & ~PAGE_MASK, end, PAGE_SIZE):
                by_page.setdefault(page & -_LARGE_PAGE, set()).add(page)
        for region in REGIONS:
            nx = 0 if region.executable else NX
            for offset in range(0, region.size, _LARGE_PAGE):
                at, physical = region.address + offset, region.physical + offset
                if at in by_page:
                    pages = by_page[at]
                    entries = [
                        physical + low | _ENTRY | (0 if at + low in pages else NX)
                        for low in range(0, _LARGE_PAGE, PAGE_SIZE)
                    ]
                    self.memory.write(self._below(self._entry_at(at, 2)), struct.pack("<512Q", *entries))
                else:
                    self._write_word(self._entry_at(at, 2), physical | _ENTRY | HUGE | nx)
                self._write_word(self._entry_at(DIRECT_MAP + physical, 2), physical | _ENTRY | HUGE | NX)
        self.forget()

    def map_page(self, address: int, target: int) -> None:
        """Show the page at guest address ``target`` at ``address`` too (``vmap``). The engine's TLB is not flushed."""
        entry = self._below(self._entry_at(address, 2)) + 8 * (address >> 12 & 511)
        self._write_word(entry, self.physical(target & ~PAGE_MASK) | _ENTRY | NX)
        self.forget()

    def _entry_at(self, address: int, level: int) -> int:
        """Physical address of the entry that is ``level`` levels below the top."""
        table = _TABLES
        for above in range(level):
            table = self._below(table + 8 * (address >> 39 - 9 * above & 511))
        return table + 8 * (address >> 39 - 9 * level & 511)

    def _below(self, entry: int) -> int:
        """The table that an entry refers to, made where there is none."""
        found = self._word(entry)
        if not found & PRESENT:
            found = self._word(_NEXT_TABLE)
            if found >= _NEXT_TABLE & ~PAGE_MASK:
                raise MemoryError("the page tables of the unbooted kernel are full")
            self._write_word(_NEXT_TABLE, found + PAGE_SIZE)
            self._write_word(entry, found | _ENTRY)
        return found & ~PAGE_MASK

    def _word(self, physical: int) -> int:
        return int.from_bytes(self.memory.read(physical, 8), "little")

    def _write_word(self, physical: int, value: int) -> None:
        self.memory.write(physical, value.to_bytes(8, "little"))
