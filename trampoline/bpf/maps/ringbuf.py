"""Ring buffers: records from programs to user space, in the order of reservation (kernel/bpf/ringbuf.c).

The data area is mapped twice in succession, so that a record across the end is contiguous.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from errno import E2BIG, EINVAL

from emu.errors import OutOfMemory
from emu.kernel.errors import KernelError
from emu.kernel.structs import StructView
from emu.machine.address_map import PAGE_SIZE, round_up
from emu.machine.machine import Prot
from trampoline.bpf.maps.array import check_access
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.flags import MapFlag
from trampoline.bpf.maps.rules import bpf_ringbuf, bpf_ringbuf_hdr
from trampoline.bpf.maps.value_format import Raw, ValueFormat
from trampoline.bpf.program import MapSpec

BUSY, DISCARD = 1 << 31, 1 << 30
"""Bits of a record's length (``BPF_RINGBUF_BUSY_BIT``, ``BPF_RINGBUF_DISCARD_BIT``)."""
HEADER = bpf_ringbuf_hdr.size
NO_WAKEUP, FORCE_WAKEUP = 1, 2
MAX_RECORD = (1 << 32) // 4 - 1
"""RINGBUF_MAX_RECORD_SZ."""
AVAIL_DATA, RING_SIZE, CONS_POS, PROD_POS, OVERWRITE_POS = range(5)
"""Flags of bpf_ringbuf_query()."""


def check_ringbuf(spec: MapSpec) -> None:
    """``ringbuf_map_alloc``. Raises KernelError -EINVAL, -E2BIG. A buffer that overwrites old records is not modelled.
    """
    check_access(spec, MapFlag.NUMA_NODE)
    size = spec.max_entries
    if spec.key_size or spec.value_size or size <= 0 or size & size - 1 or size % PAGE_SIZE:
        sizes = f"a key of {spec.key_size}, a value of {spec.value_size}, {size} bytes"
        raise KernelError(EINVAL, f"{spec.name}: {sizes}; expected 0, 0 and a power of two of at least one page")
    if size > 1 << 31:
        raise KernelError(E2BIG, f"{spec.name}: {size} bytes")


class RingBuffer(BpfMap):
    """``BPF_MAP_TYPE_RINGBUF``. Iterating removes records: each is bytes, or decoded by ``record_format``."""

    record_format: ValueFormat | None = None
    """Format of a record; records of another size are returned as bytes."""
    wakeups = 0
    """Number of times that a program woke the reader."""

    def allocate(self, undo: ExitStack) -> None:
        """The structure, and the buffer with its data mapped twice."""
        memory, size = self.site.memory, self.spec.max_entries
        self.address = memory.alloc(self.layout.bpf_ringbuf_map.size, f"bpf_map {self.name}")
        undo.callback(memory.free, self.address)
        # The second mapping of the data uses the address space after the first, so twice the size is reserved.
        self._buffer = memory.reserve(bpf_ringbuf.size + 2 * size, f"ring buffer {self.name}")
        undo.callback(memory.unreserve, self._buffer)
        machine, name = self.machine, f"ring buffer {self.name}"
        try:
            machine.map(self._buffer, bpf_ringbuf.size + size, Prot.READ | Prot.WRITE, name=name)
            undo.callback(machine.unmap, self._buffer, bpf_ringbuf.size + size)
            machine.alias(self.data + size, size, Prot.READ | Prot.WRITE, of=self.data, name=name)
            undo.callback(machine.unmap, self.data + size, size)
        except OutOfMemory:
            raise memory.exhausted(name) from None
        self.fill_in()
        self.layout.bpf_ringbuf_map.view(machine, self.address).rb = self._buffer
        self._ring.mask, self._ring.nr_pages = size - 1, (bpf_ringbuf.size + size) // PAGE_SIZE

    def release(self) -> None:
        size = self.spec.max_entries
        self.machine.unmap(self.data + size, size)
        self.machine.unmap(self._buffer, bpf_ringbuf.size + size)
        self.site.memory.unreserve(self._buffer)
        self.site.memory.free(self.address)

    @property
    def _ring(self) -> StructView:
        return bpf_ringbuf.view(self.machine, self._buffer)

    @property
    def data(self) -> int:
        """Guest address of the first byte of records."""
        return self._buffer + bpf_ringbuf.size

    # Operations of programs ------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> int:
        """Guest address of room for a record, 0 if none is left (``__bpf_ringbuf_reserve``)."""
        ring = self._ring
        length = round_up(size + HEADER, 8)
        producer = int(ring.producer_pos)
        if size > MAX_RECORD or length > self.spec.max_entries:
            return 0
        if producer + length - self._pending(ring) > int(ring.mask):
            return 0
        header = self.data + (producer & int(ring.mask))
        offset = (header - self._buffer) // PAGE_SIZE
        self.machine.write_u32(header, size | BUSY)
        self.machine.write_u32(header + 4, offset)
        ring.producer_pos = producer + length
        return header + HEADER

    def _pending(self, ring: StructView) -> int:
        """Position of the oldest record that is not committed or not read: the end of the free room."""
        position, consumer = int(ring.pending_pos), int(ring.consumer_pos)
        while position < int(ring.producer_pos):
            length = self.machine.read_u32(self.data + (position & int(ring.mask)))
            if length & BUSY:
                break
            position += round_up((length & ~DISCARD) + HEADER, 8)
        ring.pending_pos = position
        return min(position, consumer)

    def commit(self, sample: int, flags: int, *, discard: bool) -> None:
        """Commit or discard a record (``bpf_ringbuf_commit``); ``sample``: the address returned by ``reserve``."""
        header = sample - HEADER
        length = self.machine.read_u32(header) ^ BUSY
        self.machine.write_u32(header, length | (DISCARD if discard else 0))
        # The reader is woken if it had read everything before this record.
        at = (header - self.data) & int(self._ring.mask)
        caught_up = int(self._ring.consumer_pos) & int(self._ring.mask) == at
        if flags & FORCE_WAKEUP or (caught_up and not flags & NO_WAKEUP):
            self.wakeups += 1

    def query(self, what: int) -> int:
        """``bpf_ringbuf_query``; 0 for unknown flags."""
        ring = self._ring
        producer, consumer = int(ring.producer_pos), int(ring.consumer_pos)
        answers = {
            AVAIL_DATA: producer - consumer,
            RING_SIZE: self.spec.max_entries,
            CONS_POS: consumer,
            PROD_POS: producer,
        }
        return answers.get(what, 0)

    # The reader -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[object]:
        return self.records()

    def records(self) -> Iterator[object]:
        """Remove and return committed records, up to the first uncommitted one; skips discarded records."""
        ring = self._ring
        while int(ring.consumer_pos) < int(ring.producer_pos):
            at = int(ring.consumer_pos)
            header = self.data + (at & int(ring.mask))
            length = self.machine.read_u32(header)
            if length & BUSY:
                return
            size = length & ~DISCARD
            content = self.machine.read(header + HEADER, size)
            ring.consumer_pos = at + round_up(size + HEADER, 8)
            if not length & DISCARD:
                shape = self.record_format
                yield (shape if shape is not None and shape.size == size else Raw(size)).decode(content)

    def drain(self) -> list[object]:
        """All available records, removed."""
        return list(self.records())

    def __len__(self) -> int:
        return int(self._ring.producer_pos) - int(self._ring.consumer_pos)

    def __bool__(self) -> bool:
        return True
