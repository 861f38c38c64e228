"""Executable memory for images: the prog-pack allocator, or one page each on older kernels.

Guest memory is mapped read-only and executable; images are written through the poking alias (``bpf_arch_text_copy``).
Free memory is filled with int3; the fault of executing freed memory contains its name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOMEM

from asm import Image
from asm.encodings import INT3
from emu.events import EventStream, ImageFreed, ImageMade
from emu.kernel.errors import KernelError
from emu.kernel.process_context import PointKind, ProcessContext
from emu.machine.address_map import PAGE_SIZE
from emu.machine.frame_words import StackNames
from emu.machine.machine import Machine, Prot

CHUNK = 64
"""BPF_PROG_CHUNK_SIZE: images in a pack begin at multiples of it."""


@dataclass(slots=True)
class _Block:
    size: int
    name: str
    listed: bool = False


class ExecMem:
    """Allocator of executable guest memory within ``[start, start + size)``. First fit, so that runs repeat."""

    def __init__(
        self, machine: Machine, process: ProcessContext, events: EventStream, start: int, size: int, *, packs: bool
    ) -> None:
        self._machine, self._process, self._events = machine, process, events
        self._start, self._limit = start, start + size
        self._unit = CHUNK if packs else PAGE_SIZE
        self._blocks: dict[int, _Block] = {}
        self._free: list[tuple[int, int]] = [(start, size)]
        self._mapped: set[int] = set()
        self.reserved: list[int] = []
        """Addresses for the next allocations, in order (from a recorded boot)."""

    @property
    def used(self) -> int:
        """Bytes in use, rounded to the allocator's unit."""
        return sum(self._round(block.size) for block in self._blocks.values())

    @property
    def images(self) -> dict[int, str]:
        """Address and name of each allocation."""
        return {address: block.name for address, block in self._blocks.items()}

    def size_of(self, address: int) -> int:
        """Size in bytes of the image that begins at an address."""
        return self._blocks[address].size

    def alloc(self, size: int, name: str, *, at: int | None = None) -> int:
        """Allocate ``size`` bytes for the image ``name``, at ``at`` if given; returns the guest address.

        KernelError with -ENOMEM if there is no room.
        """
        self._process.point(PointKind.ALLOC, f"executable memory for {name}")
        if at is not None:
            address = at
        elif self.reserved:
            address = self.reserved.pop(0)
        else:
            address = self._first_fit(self._round(size), name)
        try:
            self._map(address, size)
        except BaseException:
            if self._start <= address < self._limit:
                self._insert_free(address, self._round(size))
            raise
        self._blocks[address] = _Block(size, name)
        return address

    def fill(self, image: Image, stack: Callable[[], StackNames] | None = None) -> None:
        """Write an image that was never executed to its allocated address, and register its listing and the names of
        its stack frame.
        """
        self.write(image.address, image.code)
        block = self._blocks[image.address]
        self._machine.add_image(image)
        if stack is not None:
            self._machine.images.name_stack(image.address, stack)
        block.listed = True
        self._events.emit(ImageMade(image.address, len(image), block.name))

    def write(self, address: int, code: bytes) -> None:
        """Write code without a listing, anywhere within allocated memory."""
        self._machine.load(address, code)

    def trim(self, address: int, size: int) -> None:
        """Free the part of an allocation after its first ``size`` bytes, before any of it was executed."""
        block = self._blocks[address]
        kept, had = self._round(size), self._round(block.size)
        block.size = size
        if self._start <= address < self._limit and kept < had:
            self._insert_free(address + kept, had - kept)

    def free(self, address: int) -> None:
        """Free an image; executing it is a fault that shows its name from now on."""
        block = self._blocks.pop(address)
        if block.listed:
            self._machine.remove_image(address)
        ours = self._start <= address < self._limit
        size = self._round(block.size) if ours else block.size
        self._machine.poison(address, size, block.name)
        if ours:
            self._insert_free(address, size)
        self._events.emit(ImageFreed(address, block.size, block.name))

    def contains(self, address: int) -> bool:
        """True if an address is in an allocated image (``is_bpf_text_address``)."""
        return any(start <= address < start + block.size for start, block in self._blocks.items())

    def _round(self, size: int) -> int:
        return (size + self._unit - 1) // self._unit * self._unit

    def _first_fit(self, size: int, name: str) -> int:
        for position, (start, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[position]
                else:
                    self._free[position] = (start + size, room - size)
                return start
        raise KernelError(ENOMEM, f"no executable memory left for {name}")

    def _insert_free(self, address: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self._free, (address, size)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._free = merged

    def _map(self, address: int, size: int) -> None:
        for page in range(address & -PAGE_SIZE, address + size, PAGE_SIZE):
            if page not in self._mapped:
                if not self._machine.is_mapped(page):
                    self._machine.map(page, PAGE_SIZE, Prot.READ | Prot.EXEC, name="images")
                    self._machine.load(page, INT3 * PAGE_SIZE)
                self._mapped.add(page)
