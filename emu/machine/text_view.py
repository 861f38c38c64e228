"""Text as one vCPU sees it: the shared text, with the writes undone that it has not adopted yet.

A write to text is certain to reach a CPU only when that CPU serialises. Until then the CPU may execute old or new
bytes; here that is an explicit choice for each write. While a vCPU runs with pending writes that it does not see, the
pages they touch are private copies, reached through private page tables; no result depends on a translation cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count

from emu.errors import MachineError, OutOfMemory
from emu.machine.address_map import PAGE_SHIFT
from emu.machine.paging import FRAME_MASK, LEVEL_SHIFTS, PRESENT, PageTables, frame_of
from emu.machine.ram import Ram


@dataclass(frozen=True, slots=True)
class TextWrite:
    """One write to text. ``old`` and ``new`` have the same length; ``serial`` orders a machine's writes."""

    address: int
    old: bytes
    new: bytes
    serial: int

    @property
    def start(self) -> int:
        """The address of the first byte."""
        return self.address

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + len(self.new)


@dataclass(eq=False, slots=True)
class TextWrites:
    """Writes that were made together; each TextWrite is built on demand. The sequences must not change.

    ``serial`` is that of the first write; the others follow.
    """

    addresses: Sequence[int]
    old: Sequence[bytes]
    new: Sequence[bytes]
    serial: int

    @property
    def start(self) -> int:
        """The lowest address."""
        return min(self.addresses)

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return max(address + len(new) for address, new in zip(self.addresses, self.new, strict=True))

    def only(self, chosen: Sequence[bool]) -> "TextWrites":
        """The writes for which ``chosen`` is true, numbered without gaps."""
        addresses, old, new = compress(self.addresses, chosen), compress(self.old, chosen), compress(self.new, chosen)
        return TextWrites(tuple(addresses), tuple(old), tuple(new), self.serial)

    def __len__(self) -> int:
        return len(self.addresses)

    def __iter__(self) -> Iterator[TextWrite]:
        return map(TextWrite, self.addresses, self.old, self.new, count(self.serial))


class ViewFrames:
    """Frames above guest RAM for root tables and private copies: not in snapshots, rebuilt on restore."""

    def __init__(self, ram: Ram) -> None:
        self._next, self._limit = ram.frames, 2 * ram.frames
        self._free: list[int] = []

    @property
    def in_use(self) -> int:
        """Number of frames in use, including one for each vCPU's root."""
        return self._next - self._limit // 2 - len(self._free)

    def take(self) -> int:
        """Allocate a frame with undefined content. OutOfMemory."""
        if self._free:
            return self._free.pop()
        if self._next == self._limit:
            raise OutOfMemory(1, 0)
        self._next += 1
        return self._next - 1

    def give_back(self, frames: list[int]) -> None:
        """Free frames, the last allocated first."""
        self._free.extend(reversed(frames))


class TextView:
    """One vCPU's root table, its pending writes and the private pages that show them."""

    def __init__(self, ram: Ram, tables: PageTables, frames: ViewFrames) -> None:
        self._ram, self._tables, self._frames = ram, tables, frames
        self.root = frames.take()
        self._pending: list[TextWrite] = []
        self._unread: list[TextWrites] = []
        self.seen: set[int] = set()
        self._by_page: dict[int, list[TextWrite]] = {}
        self._indexed = 0
        self._private: dict[tuple[int, int], int] = {}
        self._generation = -1
        self._changed = True
        self._is_copy = False
        """True if the root has the shared root's entries of generation ``_generation``."""

    @property
    def pending(self) -> list[TextWrite]:
        """Writes that this vCPU has not adopted, in order."""
        for writes in self._unread:
            self._pending.extend(writes)
        self._unread.clear()
        return self._pending

    @property
    def pending_ranges(self) -> list[tuple[int, int]]:
        """Start and end (exclusive) of the ranges that contain them; writes made together share one."""
        parts: list[TextWrite | TextWrites] = [*self._pending, *self._unread]
        return [(part.start, part.end) for part in parts]

    def add(self, writes: TextWrites) -> None:
        """Add writes that this vCPU does not see yet."""
        self._unread.append(writes)
        self._changed = True

    def see(self, address: int) -> list[TextWrite]:
        """See the new bytes of the pending writes that cover an address; returns these writes. MachineError if none."""
        found = [write for write in self.pending if write.address <= address < write.end]
        if not found:
            raise MachineError(f"no write to {address:#x} is pending")
        self.seen.update(write.serial for write in found)
        self._changed = True
        return found

    def adopt(self) -> None:
        """Adopt all pending writes."""
        self._pending, self._unread = [], []
        self.seen.clear()
        self._reindex()

    def restore(self, pending: list[TextWrite], seen: set[int]) -> None:
        """Return to a snapshot's state."""
        if not (pending or seen or self._pending or self._unread or self.seen):
            return
        self._pending, self._unread, self.seen = list(pending), [], set(seen)
        self._reindex()

    def discard(self, start: int, end: int) -> None:
        """Drop pending writes to a range that is unmapped."""
        if any(write.address < end and start < write.end for write in self.pending):
            self._pending = [write for write in self.pending if write.address >= end or write.end <= start]
            self._reindex()

    def apply(self, address: int, content: bytes) -> bytes:
        """This vCPU's view of ``content``, the shared memory at ``address``."""
        if not (self._pending or self._unread):
            return content
        self._index()
        first, last = address >> PAGE_SHIFT, (address + len(content) - 1) >> PAGE_SHIFT
        writes: list[TextWrite] = []
        for page in range(first, last + 1):
            writes.extend(write for write in self._by_page.get(page, ()) if write not in writes)
        if not writes:
            return content
        writes.sort(key=lambda write: write.serial)
        view = bytearray(content)
        for write in reversed(writes):
            _overlay(view, address, write.address, write.old)
        for write in writes:
            if write.serial in self.seen:
                _overlay(view, address, write.address, write.new)
        return bytes(view)

    @property
    def private_pages(self) -> set[int]:
        """Numbers of the pages of which this vCPU sees private copies."""
        return {prefix for depth, prefix in self._private if depth == 4}

    @property
    def stale(self) -> bool:
        """True if ``build`` must be called before this vCPU may run."""
        return self._changed or self._generation != self._tables.generation

    def build(self) -> list[int]:
        """Bring the vCPU's page tables up to date. Returns the private pages; the TLB must be flushed."""
        self.drop()
        if not self._is_copy or self._generation != self._tables.generation:
            self._ram.set_page(self.root, self._ram.page(self._tables.root))
        self._index()
        pages = sorted(page for page, writes in self._by_page.items() if any(w.serial not in self.seen for w in writes))
        for page in pages:
            self._install(page)
        self._generation, self._changed, self._is_copy = self._tables.generation, False, not self._private
        return pages

    def drop(self) -> None:
        """Free the private pages, after copying the A and D bits of private tables to the shared ones.

        Call it before any change to the shared tables, and before D bits are harvested.
        """
        if not self._private:
            return
        for (depth, prefix), frame in self._private.items():
            if depth < 4:
                page = prefix << 9 * (4 - depth)
                self._tables.merge_marks(self._tables.table_over(page, depth), frame, page, depth)
        self._frames.give_back(list(self._private.values()))
        self._private.clear()
        self._changed, self._is_copy = True, False

    def _reindex(self) -> None:
        self._by_page.clear()
        self._indexed = 0
        self._changed = True

    def _index(self) -> None:
        pending = self.pending
        for write in pending[self._indexed :]:
            for page in range(write.address >> PAGE_SHIFT, (write.end - 1 >> PAGE_SHIFT) + 1):
                self._by_page.setdefault(page, []).append(write)
        self._indexed = len(pending)

    def _install(self, page: int) -> None:
        """Add private tables that lead to a private copy of a page to this vCPU's root."""
        words = self._ram.words
        table = self.root
        for depth, shift in enumerate((*LEVEL_SHIFTS, PAGE_SHIFT), start=1):
            position = table * 512 + (page >> (shift - PAGE_SHIFT) & 511)
            entry = words[position]
            if not entry & PRESENT:
                return
            key = (depth, page >> 9 * (4 - depth))
            frame = self._private.get(key)
            if frame is None:
                frame = self._private[key] = self._frames.take()
                content = self._ram.page(frame_of(entry))
                self._ram.set_page(frame, self.apply(page << PAGE_SHIFT, content) if depth == 4 else content)
                words[position] = entry & ~FRAME_MASK | frame << PAGE_SHIFT
            table = frame


def _overlay(view: bytearray, base: int, address: int, content: bytes) -> None:
    start, end = max(base, address), min(base + len(view), address + len(content))
    if start < end:
        view[start - base : end - base] = content[start - address : end - address]

