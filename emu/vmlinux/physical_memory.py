"""Physical memory of a dumped machine: ranges of one private mapping, which guest code may write and reset undoes."""

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT, PAGE_SIZE
from emu.vmlinux.dump_errors import MissingPage

_PRESENT, _SWAPPED, _FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst)."""


class PhysicalRange(NamedTuple):
    """``size`` bytes of physical memory from ``address``, at ``offset`` of the mapping."""

    address: int
    size: int
    offset: int


class PhysicalMemory:
    """Ranges of physical addresses and the mapped bytes that hold them.

    ``file`` is a descriptor whose content is mapped private: the file never changes; -1: zeros. Ranges must not
    overlap.
    """

    def __init__(self, file: int, size: int, ranges: Sequence[PhysicalRange]) -> None:
        self._map = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._file = os.dup(file) if file >= 0 else -1
        self.ranges = tuple(sorted(ranges))
        self._starts = [one.address for one in self.ranges]
        self.host_address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _offset(self, address: int) -> tuple[int, int]:
        """Offset of a physical address in the mapping, and the bytes from there to the end of its range."""
        position = bisect_right(self._starts, address) - 1
        if position >= 0:
            start, size, offset = self.ranges[position]
            if address < start + size:
                return offset + address - start, start + size - address
        raise MissingPage(address)

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a physical address. MissingPage where the dump has not all of them."""
        offset, left = self._offset(address)
        if size <= left:
            return self._map[offset : offset + size]
        return self._map[offset : offset + left] + self.read(address + left, size - left)

    def write(self, address: int, data: bytes) -> None:
        """Change bytes in the private mapping. MissingPage where the dump has not all of them."""
        offset, left = self._offset(address)
        self._map[offset : offset + min(left, len(data))] = data[:left]
        if len(data) > left:
            self.write(address + left, data[left:])

    def has(self, address: int) -> bool:
        """True if the dump contains the byte at a physical address."""
        position = bisect_right(self._starts, address) - 1
        return position >= 0 and address < self.ranges[position].address + self.ranges[position].size

    def find(self, pattern: bytes) -> Iterator[int]:
        """Physical addresses at which a byte string begins, within one range each."""
        for start, size, offset in self.ranges:
            at = self._map.find(pattern, offset, offset + size)
            while at >= 0:
                yield start + at - offset
                at = self._map.find(pattern, at + 1, offset + size)

    def mappable(self) -> Iterator[tuple[int, int, int]]:
        """(physical address, size, host address) of the whole pages of each range."""
        for start, size, offset in self.ranges:
            first = (start + PAGE_MASK) & ~PAGE_MASK
            end = (start + size) & ~PAGE_MASK
            if first < end:
                yield first, end - first, self.host_address + offset + first - start

    # States ---------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Bring every byte back to the file's."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)
            return
        if self._file < 0:
            self._map[:] = bytes(len(self._map))
            return
        for start in range(0, len(self._map), 1 << 20):
            self._map[start : start + (1 << 20)] = os.pread(self._file, min(1 << 20, len(self._map) - start), start)

    def changed_pages(self) -> dict[int, bytes]:
        """Content of the mapping's pages that were written since the last reset, by page number in the mapping."""
        first = self.host_address >> PAGE_SHIFT
        count = len(self._map) + PAGE_MASK >> PAGE_SHIFT
        if sys.platform != "linux":
            pages = range(count)
            return {page: now for page in pages if (now := self._page(page)) != self._unchanged(page, len(now))}
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            pagemap.seek(8 * first)
            entries = memoryview(pagemap.read(8 * count)).cast("Q")
        # A written page of a private mapping is the process's own: present or swapped out, and no longer the file's.
        return {
            page: self._page(page)
            for page, entry in enumerate(entries)
            if entry & (_PRESENT | _SWAPPED) and not entry & _FILE
        }

    def restore(self, pages: dict[int, bytes]) -> None:
        """Bring memory to the state in which ``changed_pages`` gave these."""
        self.reset()
        for page, content in pages.items():
            self._map[page * PAGE_SIZE : page * PAGE_SIZE + len(content)] = content

    def _unchanged(self, page: int, size: int) -> bytes:
        return os.pread(self._file, size, page * PAGE_SIZE) if self._file >= 0 else bytes(size)

    def _page(self, page: int) -> bytes:
        return self._map[page * PAGE_SIZE : min((page + 1) * PAGE_SIZE, len(self._map))]

    def close(self) -> None:
        """Give the file back. The mapping lives as long as an engine runs on it."""
        if self._file >= 0:
            os.close(self._file)


def merge_ranges(ranges: Sequence[PhysicalRange]) -> list[PhysicalRange]:
    """Ranges without overlap: what several ranges hold is taken from the first of them by address.

    A QEMU dump with ``paging=true`` and /proc/vmcore list the same memory several times.
    """
    merged: list[PhysicalRange] = []
    end = 0
    for address, size, offset in sorted(ranges):
        skip = max(0, end - address)
        if skip >= size:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.address + last.size == address and last.offset + last.size == offset and not skip:
            merged[-1] = PhysicalRange(last.address, last.size + size, last.offset)
        else:
            merged.append(PhysicalRange(address + skip, size - skip, offset + skip))
        end = address + size
    return merged
