"""Guest memory for kernel objects (kmalloc) and dynamic per-CPU memory (alloc_percpu)."""

from collections import deque
from dataclasses import dataclass
from errno import ENOMEM

from emu.kernel.errors import KernelError
from emu.kernel.process_context import PointKind, ProcessContext
from emu.machine.machine import Machine

POISON = 0x6B
"""POISON_FREE: fill byte of freed objects (include/linux/poison.h)."""


@dataclass(frozen=True, slots=True)
class _Object:
    size: int
    name: str


class _Ranges:
    """First-fit bookkeeping of ``[start, start + size)``, in units of ``align`` bytes."""

    def __init__(self, start: int, size: int, align: int) -> None:
        self._align = align
        self._next, self._limit = start, start + size
        self._freed: dict[int, deque[int]] = {}

    def take(self, size: int) -> int | None:
        size = self.rounded(size)
        if freed := self._freed.get(size):
            return freed.popleft()
        if self._next + size > self._limit:
            return None
        self._next += size
        return self._next - size

    def give(self, address: int, size: int) -> None:
        self._freed.setdefault(self.rounded(size), deque()).append(address)

    def rounded(self, size: int) -> int:
        return (max(size, 1) + self._align - 1) // self._align * self._align


class Slab:
    """Objects in guest memory, zeroed when allocated and poisoned when freed.

    Freed memory of one size is reused oldest first, so that a stale pointer meets poison as long as possible.
    """

    def __init__(self, machine: Machine, process: ProcessContext, start: int, size: int, *, align: int = 16) -> None:
        self._machine, self._process = machine, process
        self._ranges = _Ranges(start, size, align)
        self._objects: dict[int, _Object] = {}

    @property
    def used(self) -> int:
        """Bytes in use."""
        return sum(found.size for found in self._objects.values())

    @property
    def objects(self) -> dict[int, str]:
        """Address and name of each allocation."""
        return {address: found.name for address, found in self._objects.items()}

    def name_at(self, address: int) -> str | None:
        """Name of the object that contains an address."""
        for start, found in self._objects.items():
            if start <= address < start + found.size:
                return found.name
        return None

    def alloc(self, size: int, name: str, content: bytes = b"") -> int:
        """Allocate ``size`` bytes, ``content`` and then zeros; returns the guest address. KernelError with -ENOMEM if
        there is no room.
        """
        self._process.point(PointKind.ALLOC, name)
        address = self._ranges.take(size)
        if address is None:
            raise KernelError(ENOMEM, f"no memory for {name}")
        if self._process.memory is not None:
            self._process.memory.allocated(address, size)
        self._machine.write(address, content.ljust(size, b"\0"))
        self._objects[address] = _Object(size, name)
        return address

    def free(self, address: int) -> None:
        """Free an object."""
        gone = self._objects.pop(address)
        self._machine.fill(address, gone.size, POISON)
        if self._process.memory is not None:
            self._process.memory.freed(address, gone.size, gone.name)
        self._ranges.give(address, gone.size)


class PerCpu:
    """Dynamic per-CPU memory: an allocation is an offset from every CPU's GS base."""

    def __init__(
        self, machine: Machine, process: ProcessContext, areas: tuple[int, ...], start: int, size: int
    ) -> None:
        self._machine, self._process, self._areas = machine, process, areas
        self._ranges = _Ranges(start, size, 8)
        self._objects: dict[int, _Object] = {}

    @property
    def objects(self) -> dict[int, str]:
        """Offset and name of each allocation."""
        return {offset: found.name for offset, found in self._objects.items()}

    def name(self, offset: int) -> str:
        """Name of the allocation at an offset; empty if it is free."""
        found = self._objects.get(offset)
        return "" if found is None else found.name

    @property
    def used(self) -> int:
        """Bytes in use on each CPU."""
        return sum(found.size for found in self._objects.values())

    def alloc(self, size: int, name: str) -> int:
        """Per-CPU offset of ``size`` zeroed bytes on each CPU. KernelError with -ENOMEM if there is no room."""
        self._process.point(PointKind.ALLOC, f"per-CPU {name}")
        offset = self._ranges.take(size)
        if offset is None:
            raise KernelError(ENOMEM, f"no per-CPU memory for {name}")
        for area in self._areas:
            if self._process.memory is not None:
                self._process.memory.allocated(area + offset, size)
            self._machine.write(area + offset, bytes(size))
        self._objects[offset] = _Object(size, name)
        return offset

    def free(self, offset: int) -> None:
        """Free an allocation."""
        gone = self._objects.pop(offset)
        for area in self._areas:
            self._machine.fill(area + offset, gone.size, POISON)
            if self._process.memory is not None:
                self._process.memory.freed(area + offset, gone.size, f"per-CPU {gone.name}")
        self._ranges.give(offset, gone.size)

    def address(self, offset: int, cpu: int) -> int:
        """Guest address of an allocation on one CPU."""
        return self._areas[cpu] + offset

    def values(self, offset: int, size: int = 8) -> list[int]:
        """The little-endian number at an offset on every CPU."""
        return [int.from_bytes(self._machine.read(area + offset, size), "little") for area in self._areas]
