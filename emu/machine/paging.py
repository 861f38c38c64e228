"""Page tables of the guest: 4 levels, 4 KiB pages, in guest RAM, as the engines walk them."""

import enum
from array import array
from collections.abc import Iterator, Sequence

from emu.errors import MachineError, NotMapped, OutOfMemory
from emu.machine.address_map import PAGE_SHIFT, PAGE_SIZE
from emu.machine.ram import ZERO_PAGE, Ram

PRESENT = 1 << 0
RW = 1 << 1
ACCESSED = 1 << 5
DIRTY = 1 << 6
NX = 1 << 63

FRAME_MASK = 0x000F_FFFF_FFFF_F000
LEVEL_SHIFTS = (39, 30, 21)
"""Address bits of the three upper levels' indices; the leaf level's is PAGE_SHIFT."""

_TABLE = PRESENT | RW | ACCESSED
_EACH = int.from_bytes((1).to_bytes(8, "little") * 512, "little")
_ALL_DIRTY = _EACH * DIRTY
_ALL_ACCESSED = _EACH * ACCESSED
ALL_MARKS = _ALL_DIRTY | _ALL_ACCESSED
"""The A and D bits of a table's 512 entries, as one integer."""


class Prot(enum.Flag):
    """Protection of a page. A mapped page is always readable."""

    READ = 1
    WRITE = 2
    EXEC = 4


def leaf(frame: int, prot: Prot) -> int:
    """The page-table entry of a frame."""
    writable = RW if Prot.WRITE in prot else 0
    return frame << PAGE_SHIFT | PRESENT | ACCESSED | writable | (0 if Prot.EXEC in prot else NX)


def frame_of(entry: int) -> int:
    """The frame that an entry points at."""
    return (entry & FRAME_MASK) >> PAGE_SHIFT


class PageTables:
    """The shared page tables. ``root`` is a frame that no CPU loads: each vCPU has a copy of it
    (``emu.machine.text_view``).

    Tables are frames of guest RAM, so that a snapshot of RAM holds them, and go back when empty.
    ``generation`` changes with the root's entries; ``cached`` translations are good until the next change.
    """

    def __init__(self, ram: Ram) -> None:
        self._ram = ram
        self._words = ram.words
        self.root = ram.allocator.take(1)[0]
        self.generation = 0
        self.version = 0
        """A different number for every state of the entries, except for their A and D bits."""
        self._versions = 0
        self.known: dict[int, int] = {}
        """Leaf entries looked up since the last change, by page number."""

    def entry(self, page: int) -> int:
        """The leaf entry of a page number, its D bit perhaps out of date; 0 if the page is not mapped."""
        found = self.known.get(page)
        if found is None:
            position = self._leaf_position(page)
            found = self._words[position] if position else 0
            if found:
                self.known[page] = found
        return found

    def restored(self, version: int) -> None:
        """Note that RAM holds the tables of a version; cached translations of another version are dropped."""
        if self.version != version:
            self.version = version
            self.known.clear()
            self.generation += 1

    def _changed(self) -> None:
        self._versions += 1
        self.version = self._versions

    def tables_needed(self, page: int, count: int) -> int:
        """Number of tables that mapping ``count`` pages from ``page`` on would add."""
        needed = 0
        for depth in range(3):
            span = 9 * (3 - depth)
            for prefix in range(page >> span, ((page + count - 1) >> span) + 1):
                if self._table_at(prefix << span, depth + 1) == 0:
                    needed += 1
        return needed

    def map(self, page: int, entries: Sequence[int]) -> None:
        """Install leaf entries from ``page`` on. OutOfMemory, and nothing changed, if RAM for tables is lacking."""
        missing = self.tables_needed(page, len(entries))
        if missing > self._ram.allocator.free_frames:
            raise OutOfMemory(missing, self._ram.allocator.free_frames)
        for position, start, count in self._runs(page, len(entries)):
            self._words[position : position + count] = memoryview(array("Q", entries[start : start + count]))
            self._ram.dirty.add(position >> 9)
        self._changed()

    def set_entry(self, page: int, entry: int) -> None:
        """Replace the leaf entry of a mapped page, for the same frame; its D bit stays. NotMapped."""
        position = self._leaf_position(page)
        if not position:
            raise NotMapped(page << PAGE_SHIFT)
        self._words[position] = entry | self._words[position] & DIRTY
        self._ram.dirty.add(position >> 9)
        self.known.pop(page, None)
        self._changed()

    def unmap(self, page: int) -> int:
        """Unmap a page and return its entry. Tables that become empty are freed. NotMapped."""
        path = self._path(page)
        entry = self._words[path[-1]]
        if entry & DIRTY:
            self._ram.dirty.add(frame_of(entry))
        self.known.pop(page, None)
        self._changed()
        for position in reversed(path):
            self._words[position] = 0
            table = position >> 9
            self._ram.dirty.add(table)
            if position == path[0]:
                self.generation += 1
            if table == self.root or self._ram.page(table) != ZERO_PAGE:
                break
            self._ram.allocator.give_back(table)
        return entry

    def mapped_in(self, page: int, count: int) -> int | None:
        """The first mapped page of a range, or None."""
        number = page
        while number < page + count:
            table = self._table_at(number, 3)
            index = number & 511
            span = min(512 - index, page + count - number)
            if table:
                start = (table << PAGE_SHIFT) + index * 8
                if self._ram.bytes[start : start + span * 8] != ZERO_PAGE[: span * 8]:
                    return next(n for n in range(number, number + span) if self._words[table * 512 + (n & 511)])
            number += span
        return None

    def is_dirty(self, page: int) -> bool:
        """True if the guest wrote to a page through this mapping since its D bit was cleared."""
        position = self._leaf_position(page)
        return bool(position and self._words[position] & DIRTY)

    def clear_dirty(self, page: int) -> None:
        """Clear one D bit. The TLBs still hold the page as writable until they are flushed."""
        position = self._leaf_position(page)
        if position:
            self._words[position] &= ~DIRTY

    def harvest(self) -> set[int]:
        """Frames that the guest wrote to since the last harvest. Clears the bits: TLBs must be flushed afterwards.

        Reads only tables whose A bit is set, so the cost depends on what was walked since.
        """
        dirty: set[int] = set()
        for directory_pointers in self._children(self.root, marked=False):
            for directory in self._children(directory_pointers, marked=True):
                for table in self._children(directory, marked=True):
                    self._harvest_table(table, dirty)
        return dirty

    def merge_marks(self, table: int, private: int, page: int, depth: int) -> None:
        """Copy the A and D bits of a private copy of the table at ``depth`` over ``page`` to the shared table."""
        mine, theirs = self._integer(table), self._integer(private)
        merged = mine | theirs & ALL_MARKS
        if merged != mine:
            self._ram.set_page(table, merged.to_bytes(PAGE_SIZE, "little"))
            # The A bits of the upper levels must lead a harvest here.
            upper = self.root
            for level, shift in enumerate(LEVEL_SHIFTS[:depth]):
                position = upper * 512 + (page >> (shift - PAGE_SHIFT) & 511)
                if level:
                    self._words[position] |= ACCESSED
                upper = frame_of(self._words[position])

    def table_over(self, page: int, depth: int) -> int:
        """Frame of the table at ``depth`` (0 the root, 3 the leaves') that translates a page; 0 if there is none."""
        return self._table_at(page, depth)

    def _children(self, table: int, *, marked: bool) -> Iterator[int]:
        wanted = _ALL_ACCESSED if marked else _EACH
        value = self._integer(table)
        bits = value & wanted
        if not bits:
            return
        base = table * 512
        for index in _entries_in(bits):
            if marked:
                self._words[base + index] &= ~ACCESSED
            if self._words[base + index] & PRESENT:
                yield frame_of(self._words[base + index])

    def _harvest_table(self, table: int, dirty: set[int]) -> None:
        bits = self._integer(table) & _ALL_DIRTY
        if not bits:
            return
        base = table * 512
        for index in _entries_in(bits):
            entry = self._words[base + index]
            dirty.add(frame_of(entry))
            self._words[base + index] = entry & ~DIRTY

    def _integer(self, table: int) -> int:
        return int.from_bytes(self._ram.page(table), "little")

    def _table_at(self, page: int, depth: int) -> int:
        table = self.root
        for shift in LEVEL_SHIFTS[:depth]:
            entry = self._words[table * 512 + (page >> (shift - PAGE_SHIFT) & 511)]
            if not entry & PRESENT:
                return 0
            table = frame_of(entry)
        return table

    def _leaf_position(self, page: int) -> int:
        table = self._table_at(page, 3)
        if not table:
            return 0
        position = table * 512 + (page & 511)
        return position if self._words[position] & PRESENT else 0

    def _path(self, page: int) -> list[int]:
        """Positions of the four entries that translate a page, the root's first."""
        positions = []
        table = self.root
        for shift in (*LEVEL_SHIFTS, PAGE_SHIFT):
            position = table * 512 + (page >> (shift - PAGE_SHIFT) & 511)
            if not self._words[position] & PRESENT:
                raise NotMapped(page << PAGE_SHIFT)
            positions.append(position)
            table = frame_of(self._words[position])
        return positions

    def _runs(self, page: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(position of the first entry, offset in the range, length) for each table that a range touches."""
        done = 0
        while done < count:
            number = page + done
            table = self.root
            for shift in LEVEL_SHIFTS:
                position = table * 512 + (number >> (shift - PAGE_SHIFT) & 511)
                entry = self._words[position]
                if not entry & PRESENT:
                    entry = self._ram.allocator.take(1)[0] << PAGE_SHIFT | _TABLE
                    self._words[position] = entry
                    self._ram.dirty.add(table)
                    if table == self.root:
                        self.generation += 1
                table = frame_of(entry)
            span = min(512 - (number & 511), count - done)
            yield table * 512 + (number & 511), done, span
            done += span


def _entries_in(bits: int) -> Iterator[int]:
    """Indices of the entries of a table that have a bit set."""
    while bits:
        low = bits & -bits
        index = (low.bit_length() - 1) >> 6
        yield index
        bits &= ~(((1 << 64) - 1) << (index << 6))


def page_range(address: int, size: int) -> tuple[int, int]:
    """Page number and count of a page-aligned range. MachineError for any other range."""
    if address % PAGE_SIZE or size % PAGE_SIZE or size <= 0:
        raise MachineError(f"{address:#x} + {size:#x} bytes is not a range of whole pages")
    return address >> PAGE_SHIFT, size >> PAGE_SHIFT
