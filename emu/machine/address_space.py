"""Guest memory by virtual address: mappings, reads and writes, and changes of text."""

import operator
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from asm.encodings import INT3
from emu.errors import MachineError, NotMapped, OutOfMemory, TextWriteError
from emu.machine.address_map import ADDRESS_MASK, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, is_canonical
from emu.machine.image_map import ImageMap
from emu.machine.paging import NX, RW, PageTables, Prot, frame_of, leaf, page_range
from emu.machine.ram import Ram
from emu.machine.text_view import TextWrites

if TYPE_CHECKING:
    from emu.machine.vcpu import Vcpu


_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Region:
    """A mapped range, as it was passed to ``AddressSpace.map``."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class SpaceRecord:
    """State of an address space in a snapshot, in addition to RAM, which holds the page tables."""

    allocator: tuple[int, tuple[int, ...], dict[int, int]]
    regions: tuple[Region, ...]
    text_users: dict[int, tuple[int, ...]]
    text_aliases: dict[int, int]
    tables: int
    """The version of the page tables."""


class AddressSpace:
    """The memory that a machine's vCPUs share, and their views of its text."""

    def __init__(self, ram_bytes: int) -> None:
        self.ram = Ram(ram_bytes)
        self.tables = PageTables(self.ram)
        self.images = ImageMap()
        self.vcpus: list[Vcpu] = []
        self.text_aliases: dict[int, int] = {}
        """Page numbers of writable aliases of text, with their frames."""
        self.text_users: dict[int, tuple[int, ...]] = {}
        """The page numbers at which a frame is executable. A snapshot may hold the same dictionary: copied on write."""
        self.before_store: Callable[[int, int], None] | None = None
        """Called before the host writes data (address, size), so that a schedule can run other threads first."""
        self.after_code: Callable[[int, int], None] | None = None
        """Called after code was placed or text was written (address, end)."""
        self._text_users_shared = False
        self._regions: list[Region] = []
        self._serial = 0

    # Mappings -------------------------------------------------------------------------------------------------------

    def map(self, address: int, size: int, prot: Prot, name: str = "") -> None:
        """Map zeroed memory. MachineError if part of the range is mapped, OutOfMemory; nothing is changed then."""
        page, count = self._free_range(address, size)
        wanted = count + self.tables.tables_needed(page, count)
        if wanted > self.free_frames:
            raise OutOfMemory(wanted, self.free_frames)
        self._before_mapping_change()
        frames = self.ram.allocator.take(count)
        self._install(page, frames, prot, name)

    def alias(self, address: int, size: int, prot: Prot, of: int, name: str = "") -> None:
        """Map the memory at guest address ``of`` a second time. MachineError, NotMapped, OutOfMemory."""
        page, count = self._free_range(address, size)
        page_range(of, size)
        first = of >> PAGE_SHIFT
        frames = [frame_of(self._entry(number << PAGE_SHIFT)) for number in range(first, first + count)]
        needed = self.tables.tables_needed(page, count)
        if needed > self.free_frames:
            raise OutOfMemory(needed, self.free_frames)
        self._before_mapping_change()
        for frame in frames:
            self.ram.allocator.share(frame)
        self._install(page, frames, prot, name or "alias")

    def unmap(self, address: int, size: int) -> None:
        """Remove mappings; memory without another mapping is freed. NotMapped for a hole: nothing is changed."""
        page, count = page_range(address, size)
        for number in range(page, page + count):
            self._entry(number << PAGE_SHIFT)
        self._before_mapping_change()
        self.before_text_change(address, address + size)
        for number in range(page, page + count):
            frame = frame_of(self.tables.unmap(number))
            self._drop_text_use(frame, number)
            self.ram.allocator.give_back(frame)
        for vcpu in self.vcpus:
            vcpu.view.discard(address, address + size)
            vcpu.mappings_changed()
        self._cut_regions(address, address + size)

    def protect(self, address: int, size: int, prot: Prot) -> None:
        """Change the protection of mapped memory."""
        page, count = page_range(address, size)
        entries = [self._entry(number << PAGE_SHIFT) for number in range(page, page + count)]
        self._before_mapping_change()
        self.before_text_change(address, address + size)
        for number, entry in enumerate(entries, start=page):
            frame = frame_of(entry)
            self._drop_text_use(frame, number)
            self.tables.set_entry(number, leaf(frame, prot))
            self._note_text_use(frame, number, prot)
        for vcpu in self.vcpus:
            vcpu.mappings_changed()

    def is_mapped(self, address: int) -> bool:
        """True if an address is mapped."""
        return self.page_entry(address) != 0

    def page_entry(self, address: int) -> int:
        """The page-table entry for an address, 0 if nothing is mapped."""
        return self.tables.entry(address >> PAGE_SHIFT) if is_canonical(address) else 0

    @property
    def free_frames(self) -> int:
        """Number of unused frames of RAM."""
        return self.ram.allocator.free_frames

    def regions_at(self, address: int) -> str | None:
        """Names and protections of the regions at an address, for messages."""
        position = bisect_right(self._regions, address, key=lambda region: region.start)
        region = self._regions[position - 1] if position else None
        return region.name or None if region is not None and address < region.end else None

    def _free_range(self, address: int, size: int) -> tuple[int, int]:
        page, count = page_range(address, size)
        if not is_canonical(address) or not is_canonical(address + size - 1):
            raise MachineError(f"{address:#x} + {size:#x} bytes is not a range of canonical addresses")
        taken = self.tables.mapped_in(page, count)
        if taken is not None:
            raise MachineError(f"{taken << PAGE_SHIFT:#x} is mapped already")
        return page, count

    def _install(self, page: int, frames: list[int], prot: Prot, name: str) -> None:
        flags = leaf(0, prot)
        self.tables.map(page, [frame << PAGE_SHIFT | flags for frame in frames])
        executable = Prot.EXEC in prot
        for number, frame in enumerate(frames, start=page):
            if executable or frame in self.text_users:
                self._note_text_use(frame, number, prot)
        start, end = page << PAGE_SHIFT, page + len(frames) << PAGE_SHIFT
        position = bisect_right(self._regions, start, key=lambda region: region.start)
        self._regions.insert(position, Region(start, end, name))
        self.images.set_used(start, end)
        if executable:
            for vcpu in self.vcpus:
                vcpu.text_changed(start, end)

    def _note_text_use(self, frame: int, page: int, prot: Prot) -> None:
        if Prot.EXEC in prot:
            users = self.text_users.get(frame, ())
            if not users and self.ram.allocator.is_shared(frame):
                self._find_writable_aliases(frame)
            self._own_text_users()[frame] = (*users, page)
        if Prot.WRITE in prot and frame in self.text_users:
            self.text_aliases[page] = frame

    def _own_text_users(self) -> dict[int, tuple[int, ...]]:
        if self._text_users_shared:
            self.text_users, self._text_users_shared = dict(self.text_users), False
        return self.text_users

    def _find_writable_aliases(self, frame: int) -> None:
        """Watch the writable mappings of a frame that becomes text."""
        for region in self._regions:
            for page in range(region.start >> PAGE_SHIFT, region.end >> PAGE_SHIFT):
                entry = self.tables.entry(page)
                if frame_of(entry) == frame and entry & RW:
                    self.text_aliases[page] = frame

    def _drop_text_use(self, frame: int, page: int) -> None:
        self.text_aliases.pop(page, None)
        users = self.text_users.get(frame, ())
        if page in users:
            left = self._own_text_users()[frame] = tuple(user for user in users if user != page)
            if not left:
                del self.text_users[frame]
                for alias in [alias for alias, target in self.text_aliases.items() if target == frame]:
                    del self.text_aliases[alias]

    def _cut_regions(self, start: int, end: int) -> None:
        kept = []
        for region in self._regions:
            if region.start < start:
                kept.append(Region(region.start, min(region.end, start), region.name))
            if region.end > end:
                kept.append(Region(max(region.start, end), region.end, region.name))
        self._regions = kept

    def _before_mapping_change(self) -> None:
        for vcpu in self.vcpus:
            vcpu.view.drop()

    # Memory ---------------------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Bytes of guest memory as RAM holds them (a vCPU may see older text). NotMapped."""
        offset = address & PAGE_MASK
        if offset + size <= PAGE_SIZE:
            start = (frame_of(self._entry(address)) << PAGE_SHIFT) + offset
            return self.ram.bytes[start : start + size]
        return b"".join(self.ram.bytes[start : start + length] for start, length in self._pieces(address, size))

    def read_each(self, addresses: Sequence[int], size: int) -> list[bytes]:
        """As ``read``, ``size`` bytes at each address."""
        memory = self.ram.bytes
        starts = self._starts(addresses, repeat(size), {})
        return [
            memory[start : start + size] if start else self.read(address, size)
            for address, start in zip(addresses, starts, strict=True)
        ]

    def write(self, address: int, data: bytes) -> None:
        """Write to memory that is not text. NotMapped, TextWriteError; nothing is written then."""
        if self.before_store is not None:
            self.before_store(address, len(data))
        offset = address & PAGE_MASK
        size = len(data)
        if offset + size <= PAGE_SIZE:
            frame = frame_of(self._entry(address))
            if frame in self.text_users:
                raise TextWriteError(address)
            start = (frame << PAGE_SHIFT) + offset
            self.ram.bytes[start : start + size] = data
            self.ram.dirty.add(frame)
            return
        for number in range(address >> PAGE_SHIFT, (address + size - 1 >> PAGE_SHIFT) + 1):
            if frame_of(self._entry(number << PAGE_SHIFT)) in self.text_users:
                raise TextWriteError(max(address, number << PAGE_SHIFT))
        self._store(address, data)

    def fill(self, address: int, size: int, byte: int) -> None:
        """Overwrite freed memory, without a call of ``before_store``. NotMapped."""
        self._store(address, bytes((byte,)) * size)

    def atomic_add_u64(self, address: int, value: int) -> int:
        """Add to eight bytes as a locked instruction does; returns the new value, modulo 2^64. Errors as ``write``."""
        if self.before_store is not None:
            self.before_store(address, 8)
        total = self.read_u64(address) + value & ADDRESS_MASK
        self._store(address, _U64.pack(total))
        return total

    def write_each(self, addresses: Sequence[int], contents: Sequence[bytes]) -> None:
        """As ``write``, at several addresses. NotMapped, TextWriteError; nothing is written then."""
        if self.before_store is not None:
            for address, content in zip(addresses, contents, strict=True):
                self.write(address, content)
            return
        frames: dict[int, int] = {}
        memory = self.ram.bytes
        starts = self._starts(addresses, map(len, contents), frames)
        for page, frame in frames.items():
            if frame in self.text_users:
                raise TextWriteError(page << PAGE_SHIFT)
        for address, content, start in zip(addresses, contents, starts, strict=True):
            if start:
                memory[start : start + len(content)] = content
            else:
                self._store(address, content)
        self.ram.dirty.update(frames.values())

    def read_u8(self, address: int) -> int:
        """One byte."""
        return self.read(address, 1)[0]

    def read_u16(self, address: int) -> int:
        """Two bytes, as a number."""
        return int.from_bytes(self.read(address, 2), "little")

    def read_u32(self, address: int) -> int:
        """Four bytes, as a number."""
        return int.from_bytes(self.read(address, 4), "little")

    def read_u64(self, address: int) -> int:
        """Eight bytes, as a number."""
        return int.from_bytes(self.read(address, 8), "little")

    def write_u8(self, address: int, value: int) -> None:
        """Write a number modulo 2^8."""
        self.write(address, bytes((value & 0xFF,)))

    def write_u16(self, address: int, value: int) -> None:
        """Write a number modulo 2^16."""
        self.write(address, _U16.pack(value & 0xFFFF))

    def write_u32(self, address: int, value: int) -> None:
        """Write a number modulo 2^32."""
        self.write(address, _U32.pack(value & 0xFFFFFFFF))

    def write_u64(self, address: int, value: int) -> None:
        """Write a number modulo 2^64."""
        self.write(address, _U64.pack(value & ADDRESS_MASK))

    def _entry(self, address: int) -> int:
        entry = self.tables.known.get(address >> PAGE_SHIFT) or self.page_entry(address)
        if not entry:
            raise NotMapped(address)
        return entry

    def _pieces(self, address: int, size: int) -> list[tuple[int, int]]:
        """(offset in RAM, length) of each page's part of a range."""
        pieces = []
        end = address + size
        while address < end:
            offset = address & PAGE_MASK
            length = min(PAGE_SIZE - offset, end - address)
            pieces.append(((frame_of(self._entry(address)) << PAGE_SHIFT) + offset, length))
            address += length
        return pieces

    def _store(self, address: int, data: bytes) -> None:
        pieces = self._pieces(address, len(data))
        done = 0
        for start, length in pieces:
            self.ram.bytes[start : start + length] = data[done : done + length]
            self.ram.dirty.add(start >> PAGE_SHIFT)
            done += length

    def _starts(self, addresses: Iterable[int], sizes: Iterable[int], frames: dict[int, int]) -> list[int]:
        """Offset in RAM of each range, 0 for a range that crosses a page boundary. Adds the frames of all pages to
        ``frames``, by page number. NotMapped.
        """
        found = []
        page = base = -1
        for address, size in zip(addresses, sizes, strict=False):
            offset = address & PAGE_MASK
            if offset + size > PAGE_SIZE:
                pieces = (start >> PAGE_SHIFT for start, _ in self._pieces(address, size))
                frames.update(enumerate(pieces, start=address >> PAGE_SHIFT))
                found.append(0)
                continue
            if address - offset != page:
                page = address - offset
                frame = frames[page >> PAGE_SHIFT] = frame_of(self._entry(address))
                base = frame << PAGE_SHIFT
            found.append(base + offset)
        return found

    # Text -----------------------------------------------------------------------------------------------------------

    def load(self, address: int, data: bytes) -> None:
        """Write code that no vCPU has executed yet: every vCPU sees it at once."""
        self._pieces(address, len(data))
        end = address + len(data)
        self.before_text_change(address, end)
        for vcpu in self.vcpus:
            vcpu.view.discard(address, end)
            if vcpu.view.private_pages:
                vcpu.view.drop()
        self._store(address, data)
        self.images.set_used(address, end)
        if self.after_code is not None:
            self.after_code(address, end)

    def write_text(self, address: int, data: bytes) -> None:
        """Patch text, as through the poking alias; each vCPU adopts it when it serialises.

        NotMapped; MachineError where the memory is not executable.
        """
        self.write_texts([address], [bytes(data)])

    def write_texts(self, addresses: Sequence[int], texts: Sequence[bytes]) -> list[bytes]:
        """Patch text at several addresses, one after the other, as ``write_text`` does; returns the old bytes.

        NotMapped and MachineError before anything is written. Neither the arguments nor the result may be changed: they
        are kept until every vCPU has adopted the writes.
        """
        frames: dict[int, int] = {}
        memory, old = self.ram.bytes, []
        starts = self._starts(addresses, map(len, texts), frames)
        for page in frames:
            if self.tables.entry(page) & NX:
                raise MachineError(f"the page at {page << PAGE_SHIFT:#x} is not text")
        for address, text, start in zip(addresses, texts, starts, strict=True):
            if start:
                end = start + len(text)
                old.append(memory[start:end])
                memory[start:end] = text
            else:
                old.append(self.read(address, len(text)))
                self._store(address, text)
        differs = list(map(operator.ne, old, texts))
        if any(differs):
            self.ram.dirty.update(frames.values())
            pending = TextWrites(addresses, old, texts, self._serial + 1)
            if not all(differs):
                pending = pending.only(differs)
            self._serial += len(pending)
            for vcpu in self.vcpus:
                vcpu.view.add(pending)
            if self.after_code is not None:
                for address, text in zip(addresses, texts, strict=True):
                    self.after_code(address, address + len(text))
        return old

    def poison(self, address: int, size: int, name: str) -> None:
        """Fill freed executable memory with int3 and record its name: executing it is a fault that shows the name."""
        self.load(address, INT3 * size)
        self.images.set_freed(address, address + size, name)

    def adopt_guest_text_writes(self) -> None:
        """After a run: text that the guest wrote through a writable alias becomes visible to every vCPU."""
        for page, frame in self.text_aliases.items():
            if self.tables.is_dirty(page):
                self.tables.clear_dirty(page)
                self.ram.dirty.add(frame)
                for vcpu in self.vcpus:
                    vcpu.mappings_changed()
                    for user in self.text_users[frame]:
                        vcpu.text_changed(user << PAGE_SHIFT, user + 1 << PAGE_SHIFT)

    def before_text_change(self, start: int, end: int) -> None:
        """Called before text changes for all vCPUs at once, other than by a pending write."""
        for vcpu in self.vcpus:
            if vcpu.counter is not None:
                vcpu.counter.invalidate(start, end)
            vcpu.text_changed(start, end)

    def capture(self) -> SpaceRecord:
        """State for a snapshot."""
        self._text_users_shared = True
        return SpaceRecord(
            self.ram.allocator.state(), tuple(self._regions), self.text_users, dict(self.text_aliases),
            self.tables.version,
        )

    def restore_space(self, record: SpaceRecord) -> None:
        """Return to a state from ``capture``, after RAM is restored."""
        self.tables.restored(record.tables)
        self.ram.allocator.restore(record.allocator)
        self._regions = list(record.regions)
        self.text_users, self._text_users_shared = record.text_users, True
        self.text_aliases = dict(record.text_aliases)
