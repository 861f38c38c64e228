"""Arrays of maps: slots contain addresses of maps like the array's inner map (kernel/bpf/map_in_map.c)."""

from errno import EBADF, EINVAL
from typing import Any

from emu.kernel.errors import KernelError
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.fd_array import FdArray, check_fd_array
from trampoline.bpf.maps.flags import MapFlag
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

_NEVER_INNER = (MapType.PROG_ARRAY, MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS, MapType.STRUCT_OPS)


def check_array_of_maps(spec: MapSpec) -> None:
    """``bpf_map_meta_alloc`` and the array's checks. Raises KernelError -EBADF without an inner map, -EINVAL."""
    check_fd_array(spec)
    if spec.inner is None:
        raise KernelError(EBADF, f"{spec.name}: an array of maps needs an inner map")
    if spec.inner.type in _NEVER_INNER:
        raise KernelError(EINVAL, f"{spec.name}: {spec.inner.name} has a type that inner maps cannot have")


class ArrayOfMaps(FdArray[BpfMap]):
    """``BPF_MAP_TYPE_ARRAY_OF_MAPS``: ``outer[0] = inner``, ``del outer[0]``. A slot has a reference to its map."""

    operations = {"map_lookup_elem": "array_of_map_lookup_elem"}  # noqa: RUF012

    def _set(self, index: int, inner: BpfMap | None) -> None:
        old = self._held.pop(index, None)
        if inner is not None:
            self.site.maps.get(inner)
            self._held[index] = inner
        self.machine.write_u64(self.slot(index), inner.address if inner is not None else 0)
        if old is not None:
            self.site.maps.put(old)

    def _check(self, inner: BpfMap) -> None:
        """``bpf_map_meta_equal``; arrays also need the same length, except with BPF_F_INNER_MAP."""
        meta, spec = self.spec.inner, inner.spec
        assert meta is not None  # checked at creation
        same = (spec.type, spec.key_size, spec.value_size, spec.flags) == (
            *(meta.type, meta.key_size, meta.value_size, meta.flags),
        )
        if spec.type is MapType.ARRAY and not meta.flags & MapFlag.INNER_MAP:
            same = same and spec.max_entries == meta.max_entries
        if not same:
            raise KernelError(EINVAL, f"{inner.name} differs from the inner map of {self.name}")

    def put(self, key: Any, value: Any, flags: int = 0) -> None:
        """Put a map into a slot. Raises KernelError -EINVAL for flags and for a different kind of map, -E2BIG beyond
        the last slot.
        """
        if not isinstance(value, BpfMap):
            raise TypeError(f"{self.name} takes maps, not {value!r}")
        index = self._checked(key, flags)
        self._check(value)
        self._set(index, value)
