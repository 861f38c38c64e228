"""Guest addresses of a dumped machine: its own page tables, of 4 or 5 levels, walked in Python.

Intel SDM volume 3, "4-level paging and 5-level paging". With page-table isolation a process has two halves of 4 KiB
each (arch/x86/entry/calling.h): bit 12 of CR3 chooses the user half, which lacks the kernel.
"""

import struct

from emu.errors import NotMapped
from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT, PAGE_SIZE
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.physical_memory import PhysicalMemory

PRESENT, WRITABLE, USER, HUGE, NX = 1, 2, 4, 0x80, 1 << 63
_FRAME = 0x000F_FFFF_FFFF_F000
_SHIFTS = (48, 39, 30, 21, 12)
USER_HALF = 1 << 12
"""Bit of CR3 that chooses the user half (``PTI_USER_PGTABLE_BIT``)."""
PCID = 0xFFF


class PageTables:
    """Guest memory through the tables at the physical address ``root``.

    ``levels`` is 4 or 5; ``ignored`` are address bits that the hardware strips (AMD's ``sme_mask``). Translations are
    remembered until ``forget``: call it once guest code may have changed the tables.
    """

    def __init__(self, memory: PhysicalMemory, root: int, levels: int, ignored: int = 0) -> None:
        self.memory, self.levels = memory, levels
        self._mask = _FRAME & ~ignored
        self.ignored = ignored
        self._shifts = _SHIFTS[5 - levels :]
        self._root = root & self._mask
        self._known: dict[int, int] = {}

    @property
    def root(self) -> int:
        """Physical address of the top table."""
        return self._root

    @root.setter
    def root(self, address: int) -> None:
        if address & self._mask != self._root:
            self._root = address & self._mask
            self._known.clear()

    def forget(self) -> None:
        """Drop remembered translations."""
        self._known.clear()

    def entry(self, address: int) -> tuple[int, int] | None:
        """The last table entry on the way to a guest address, and the bytes that it maps; None where nothing is.

        MissingPage where a table is not in the dump.
        """
        table = self._root
        for shift in self._shifts:
            (entry,) = struct.unpack("<Q", self.memory.read(table + 8 * (address >> shift & 511), 8))
            if not entry & PRESENT:
                return None
            if shift == PAGE_SHIFT or (entry & HUGE and shift <= 30):
                return entry, 1 << shift
            table = entry & self._mask
        return None

    def physical(self, address: int) -> int:
        """Physical address of a guest address. NotMapped; MissingPage where a table is not in the dump."""
        page = address >> PAGE_SHIFT
        frame = self._known.get(page)
        if frame is None:
            try:
                found = self.entry(address)
            except MissingPage as error:
                raise MissingPage(error.physical, address) from None
            if found is None:
                raise NotMapped(address)
            entry, size = found
            frame = (entry & self._mask & -size | address & size - 1) & ~PAGE_MASK
            self._known[page] = frame
        return frame | address & PAGE_MASK

    def is_mapped(self, address: int) -> bool:
        """True if a guest address leads to a page that the dump holds."""
        try:
            return self.memory.has(self.physical(address))
        except (NotMapped, MissingPage):
            return False

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a guest address. NotMapped, MissingPage."""
        pieces = []
        while size > 0:
            count = min(size, PAGE_SIZE - (address & PAGE_MASK))
            try:
                pieces.append(self.memory.read(self.physical(address), count))
            except MissingPage as error:
                raise MissingPage(error.physical, address) from None
            address, size = address + count, size - count
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_sparse(self, address: int, size: int) -> bytes:
        """The same, with zeros for what is not mapped or not in the dump."""
        pieces = []
        end = address + size
        while address < end:
            count = min(end - address, PAGE_SIZE - (address & PAGE_MASK))
            try:
                pieces.append(self.read(address, count))
            except (NotMapped, MissingPage):
                pieces.append(bytes(count))
            address += count
        return b"".join(pieces)

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory, also where the page tables forbid writes. NotMapped, MissingPage."""
        while data:
            count = min(len(data), PAGE_SIZE - (address & PAGE_MASK))
            self.memory.write(self.physical(address), data[:count])
            address, data = address + count, data[count:]

    def u64(self, address: int) -> int:
        """Unsigned 64-bit word."""
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        """Unsigned 32-bit word."""
        return int.from_bytes(self.read(address, 4), "little")

    def u16(self, address: int) -> int:
        """Unsigned 16-bit word."""
        return int.from_bytes(self.read(address, 2), "little")

    def s32(self, address: int) -> int:
        """Signed 32-bit word."""
        return int.from_bytes(self.read(address, 4), "little", signed=True)

    def text(self, address: int, limit: int = 256) -> str:
        """A NUL-ended text of at most ``limit`` bytes."""
        found = b""
        while len(found) < limit:
            piece = self.read(address, min(limit - len(found), PAGE_SIZE - (address & PAGE_MASK)))
            end = piece.find(b"\0")
            if end >= 0:
                return (found + piece[:end]).decode("utf-8", "replace")
            found, address = found + piece, address + len(piece)
        return found.decode("utf-8", "replace")


def halves(cr3: int) -> tuple[int, int]:
    """The tables that a CPU's CR3 names, and the kernel half if these are the user half of isolated ones."""
    return cr3 & ~PCID, cr3 & ~PCID & ~USER_HALF
