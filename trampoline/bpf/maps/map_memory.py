"""Guest memory for maps (``bpf_map_area_alloc``): small ones are slab objects, large ones separate pages."""

from errno import ENOMEM

from emu.errors import OutOfMemory
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import PointKind
from emu.machine.address_map import PAGE_SIZE, round_up
from emu.machine.machine import Prot

LARGEST_OBJECT = PAGE_SIZE << 3
"""Maximum size of a slab object in bytes; larger allocations use pages (``PAGE_ALLOC_COSTLY_ORDER``)."""
DISTANCE = 1 << 32
"""Offset of the pages from the start of vmalloc space."""
SPACE = 1 << 36


class MapMemory:
    """Memory of one kernel's maps, zeroed; freed pages are unmapped, so that a dangling pointer faults."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        start = kernel.layout.vmalloc + DISTANCE
        self._free: list[tuple[int, int]] = [(start, SPACE)]
        self._pages: dict[int, int] = {}
        self._reserved: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Bytes of address space in use, including the guard page after each range."""
        return sum(self._reserved.values())

    def alloc(self, size: int, name: str, *, pages: bool = False) -> int:
        """Guest address of ``size`` zeroed bytes, page-aligned if ``pages``. Raises KernelError -ENOMEM."""
        if size <= LARGEST_OBJECT and not pages:
            return self._kernel.slab.alloc(size, name)
        wanted = round_up(size, PAGE_SIZE)
        start = self.reserve(wanted, name)
        try:
            self._kernel.machine.map(start, wanted, Prot.READ | Prot.WRITE, name=name)
        except OutOfMemory:
            self.unreserve(start)
            raise self.exhausted(name) from None
        self._pages[start] = wanted
        return start

    @staticmethod
    def exhausted(name: str) -> KernelError:
        """The error -ENOMEM."""
        return KernelError(ENOMEM, f"no memory for {name}")

    def reserve(self, size: int, name: str) -> int:
        """Reserve an address range and a guard page after it, unmapped; returns its first address. Raises KernelError
        -ENOMEM.
        """
        self._kernel.process.point(PointKind.ALLOC, name)
        wanted = round_up(size, PAGE_SIZE) + PAGE_SIZE
        for position, (start, room) in enumerate(self._free):
            if room >= wanted:
                self._free[position] = (start + wanted, room - wanted)
                self._reserved[start] = wanted
                return start
        raise self.exhausted(name)

    def unreserve(self, address: int) -> None:
        """Release a range in which nothing is mapped any more."""
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self._free, (address, self._reserved.pop(address))]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._free = merged

    def free(self, address: int) -> None:
        """Free an allocation."""
        size = self._pages.pop(address, None)
        if size is None:
            self._kernel.slab.free(address)
            return
        self._kernel.machine.unmap(address, size)
        self.unreserve(address)
