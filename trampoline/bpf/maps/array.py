"""Arrays: values by index, contiguous in guest memory or in per-CPU memory (kernel/bpf/arraymap.c)."""

from collections.abc import Iterator
from contextlib import ExitStack
from errno import E2BIG, EINVAL

from emu.kernel.errors import KernelError
from emu.machine.address_map import PAGE_SIZE, round_up
from trampoline.bpf.maps.bpf_map import BpfMap, PerCpuFace, beyond, check_present, check_update, index_of
from trampoline.bpf.maps.flags import ARRAY_FLAGS, PCPU_MIN_UNIT_SIZE, MapFlag
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType


def check_access(spec: MapSpec, allowed: int) -> None:
    """Check map flags: -EINVAL for flags outside ``allowed``, and for maps that programs may neither read nor write."""
    both = MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG
    if spec.flags & ~int(allowed) or spec.flags & both == both:
        raise KernelError(EINVAL, f"{spec.name}: map flags {spec.flags:#x}")


def check_array(spec: MapSpec) -> None:
    """``array_map_alloc_check``. Raises KernelError -EINVAL, -E2BIG."""
    percpu = spec.type is MapType.PERCPU_ARRAY
    check_access(spec, ARRAY_FLAGS)
    if spec.key_size != 4 or spec.value_size <= 0 or spec.max_entries <= 0:
        sizes = f"a key of {spec.key_size}, a value of {spec.value_size}, {spec.max_entries} entries"
        raise KernelError(EINVAL, f"{spec.name}: {sizes}")
    if percpu and spec.flags & MapFlag.NUMA_NODE:
        raise KernelError(EINVAL, f"{spec.name}: per-CPU memory is on every node")
    if spec.type is not MapType.ARRAY and spec.flags & (MapFlag.MMAPABLE | MapFlag.INNER_MAP):
        raise KernelError(EINVAL, f"{spec.name}: map flags {spec.flags:#x}")
    if spec.flags & MapFlag.PRESERVE_ELEMS:
        raise KernelError(EINVAL, f"{spec.name}: BPF_F_PRESERVE_ELEMS is for perf event arrays")
    if spec.value_size >= 1 << 31 or (percpu and round_up(spec.value_size, 8) > PCPU_MIN_UNIT_SIZE):
        raise KernelError(E2BIG, f"{spec.name}: a value of {spec.value_size} bytes")


class ArrayLike(BpfMap):
    """Base of arrays: ``max_entries`` elements of ``elem_size`` bytes, after the structure."""

    @property
    def elem_size(self) -> int:
        """Distance between elements in bytes."""
        return round_up(self.spec.value_size, 8)

    @property
    def value_address(self) -> int:
        """Guest address of the first element."""
        return self.address + self.layout.bpf_array.size

    def allocate(self, undo: ExitStack) -> None:
        """One allocation; an array that user space can map has its values on separate pages."""
        head, size = self.layout.bpf_array.size, self.elem_size * self.spec.max_entries
        name = f"bpf_map {self.name}"
        if self.spec.flags & MapFlag.MMAPABLE:
            self._block = self.site.memory.alloc(PAGE_SIZE + round_up(size, PAGE_SIZE), name, pages=True)
            self.address = self._block + PAGE_SIZE - head
        else:
            self._block = self.address = self.site.memory.alloc(head + size, name)
        undo.callback(self.site.memory.free, self._block)
        self.fill_in()
        array = self.layout.bpf_array.view(self.machine, self.address)
        array.elem_size = self.elem_size
        array.index_mask = (1 << (self.spec.max_entries - 1).bit_length()) - 1 & 0xFFFFFFFF

    def release(self) -> None:
        self.site.memory.free(self._block)

    def keys_in_memory(self) -> Iterator[bytes]:
        """All indices, ascending."""
        return (index.to_bytes(4, "little") for index in range(self.spec.max_entries))

    def __len__(self) -> int:
        return self.spec.max_entries

    def slot(self, index: int) -> int:
        """Guest address of an element."""
        return self.value_address + index * self.elem_size


class ArrayMap(ArrayLike):
    """``BPF_MAP_TYPE_ARRAY``; a one-element array of global data starts with its initial value."""

    operations = {  # noqa: RUF012
        "map_lookup_elem": "array_map_lookup_elem",
        "map_update_elem": "array_map_update_elem",
        "map_delete_elem": "array_map_delete_elem",
        "map_for_each_callback": "bpf_for_each_array_elem",
    }

    def allocate(self, undo: ExitStack) -> None:
        super().allocate(undo)
        if len(self.spec.initial) > self.spec.value_size:
            raise KernelError(E2BIG, f"{self.name}: {len(self.spec.initial)} bytes of data for {self.spec.value_size}")
        if self.spec.initial:
            self.machine.write(self.value_address, self.spec.initial)

    def lookup(self, key: bytes) -> int:
        """Address of an element, 0 beyond the last."""
        index = index_of(key)
        return self.slot(index) if index < self.spec.max_entries else 0

    def update_elem(self, key: bytes, value: bytes, flags: int = 0, cpu: int | None = None) -> None:
        """All elements always exist: -E2BIG beyond the last, -EEXIST for BPF_NOEXIST."""
        check_update(self.name, flags)
        index = index_of(key)
        if index >= self.spec.max_entries:
            raise beyond(self.name, index)
        check_present(self.name, flags, there=True)
        self.machine.write(self.slot(index), value)


class PerCpuArrayMap(PerCpuFace, ArrayLike):
    """``BPF_MAP_TYPE_PERCPU_ARRAY``: an array of per-CPU pointers."""

    operations = {  # noqa: RUF012
        "map_lookup_elem": "percpu_array_map_lookup_elem",
        "map_update_elem": "array_map_update_elem",
        "map_delete_elem": "array_map_delete_elem",
        "map_lookup_percpu_elem": "percpu_array_map_lookup_percpu_elem",
        "map_for_each_callback": "bpf_for_each_array_elem",
    }

    def allocate(self, undo: ExitStack) -> None:
        """The pointers follow the structure (8 bytes each, independent of the value's size), the values are in per-CPU
        memory.
        """
        head, count = self.layout.bpf_array.size, self.spec.max_entries
        self._block = self.address = self.site.memory.alloc(head + 8 * count, f"bpf_map {self.name}")
        undo.callback(self.site.memory.free, self._block)
        self._values = self.kernel.percpu.alloc(self.stride * count, f"values of {self.name}")
        undo.callback(self.kernel.percpu.free, self._values)
        self.fill_in()
        array = self.layout.bpf_array.view(self.machine, self.address)
        array.elem_size = self.stride
        array.index_mask = (1 << (count - 1).bit_length()) - 1 & 0xFFFFFFFF
        pointers = (self._values + index * self.stride for index in range(count))
        self.machine.write(self.value_address, b"".join(pointer.to_bytes(8, "little") for pointer in pointers))

    def release(self) -> None:
        self.kernel.percpu.free(self._values)
        super().release()

    def lookup(self, key: bytes) -> int:
        """Address of an element's value on CPU 0."""
        pptr = self._pptr(key)
        return self.kernel.percpu.address(pptr, 0) if pptr else 0

    def _pptr(self, key: bytes) -> int:
        index = index_of(key)
        return self.machine.read_u64(self.value_address + 8 * index) if index < self.spec.max_entries else 0

    def read_value(self, key: bytes) -> bytes | None:
        pptr = self._pptr(key)
        return self.read_cpus(pptr) if pptr else None

    def update_elem(self, key: bytes, value: bytes, flags: int = 0, cpu: int | None = None) -> None:
        """As for an array; a program sets its own CPU's value."""
        check_update(self.name, flags)
        pptr = self._pptr(key)
        if not pptr:
            raise beyond(self.name, index_of(key))
        check_present(self.name, flags, there=True)
        self.write_cpus(pptr, value, cpu)
