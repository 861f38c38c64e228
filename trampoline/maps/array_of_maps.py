"""Arrays of maps: slots hold addresses of maps like the one that the array was made with (kernel/bpf/map_in_map.c)."""

from collections.abc import Iterator
from contextlib import ExitStack
from errno import EBADF, EINVAL, ENOENT
from typing import Any

from emu.kernel.errors import KernelError
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.maps.array import ArrayLike, check_array
from trampoline.maps.bpf_map import BpfMap, beyond, index_of
from trampoline.maps.flags import MapFlag

_NEVER_INNER = (MapType.PROG_ARRAY, MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS, MapType.STRUCT_OPS)


def check_array_of_maps(spec: MapSpec) -> None:
    """``bpf_map_meta_alloc`` and the array's checks: KernelError -EBADF without an inner map, -EINVAL."""
    if spec.value_size != 4:
        raise KernelError(EINVAL, f"{spec.name}: values of {spec.value_size} bytes; a file descriptor has 4")
    if spec.flags & (MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG):
        raise KernelError(EINVAL, f"{spec.name}: programs don't write arrays of maps")
    if spec.inner is None:
        raise KernelError(EBADF, f"{spec.name}: of what maps?")
    if spec.inner.type in _NEVER_INNER:
        raise KernelError(EINVAL, f"{spec.name}: {spec.inner.name} is of a type that inner maps can't have")
    check_array(spec)


class ArrayOfMaps(ArrayLike):
    """``BPF_MAP_TYPE_ARRAY_OF_MAPS``: ``outer[0] = inner``, ``del outer[0]``. A slot holds a reference to its map."""

    operations = {"map_lookup_elem": "array_of_map_lookup_elem"}  # noqa: RUF012

    def allocate(self, undo: ExitStack) -> None:
        """As all arrays."""
        self._held: dict[int, BpfMap] = {}
        super().allocate(undo)

    def release(self) -> None:
        """Let go of the inner maps and give its memory back."""
        self.clear()
        super().release()

    @property
    def elem_size(self) -> int:
        """A pointer."""
        return 8

    def _set(self, index: int, inner: BpfMap | None) -> None:
        old = self._held.pop(index, None)
        if inner is not None:
            self.site.maps.get(inner)
            self._held[index] = inner
        self.machine.write_u64(self.slot(index), inner.address if inner is not None else 0)
        if old is not None:
            self.site.maps.put(old)

    def _check(self, inner: BpfMap) -> None:
        """``bpf_map_meta_equal``; arrays have the same length too unless BPF_F_INNER_MAP says otherwise."""
        meta, spec = self.spec.inner, inner.spec
        assert meta is not None  # checked when it was made
        same = (spec.type, spec.key_size, spec.value_size, spec.flags) == (
            *(meta.type, meta.key_size, meta.value_size, meta.flags),
        )
        if spec.type is MapType.ARRAY and not meta.flags & MapFlag.INNER_MAP:
            same = same and spec.max_entries == meta.max_entries
        if not same:
            raise KernelError(EINVAL, f"{inner.name} is not like the maps that {self.name} is for")

    # Python's face --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> BpfMap:
        found = self._held.get(index_of(self.key_format.encode(key)))
        if found is None:
            raise KeyError(key)
        return found

    def put(self, key: Any, value: Any, flags: int = 0) -> None:
        """Put a map into a slot: KernelError -EINVAL for flags and for one of another kind, -E2BIG for a slot that
        there is not.
        """
        index = index_of(self.key_format.encode(key))
        if not isinstance(value, BpfMap):
            raise TypeError(f"{self.name} takes maps, not {value!r}")
        if flags:
            raise KernelError(EINVAL, f"{self.name}: update with flags {flags:#x}")
        if index >= self.spec.max_entries:
            raise beyond(self.name, index)
        self._check(value)
        self._set(index, value)

    def delete_elem(self, key: bytes) -> None:
        """Empty a slot: KernelError -E2BIG, -ENOENT for one that is empty."""
        index = index_of(key)
        if index >= self.spec.max_entries:
            raise beyond(self.name, index)
        if index not in self._held:
            raise KernelError(ENOENT, f"{self.name}: slot {index} is empty")
        self._set(index, None)

    def __contains__(self, key: object) -> bool:
        return index_of(self.key_format.encode(key)) in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Empty every slot."""
        for index in list(self._held):
            self._set(index, None)
