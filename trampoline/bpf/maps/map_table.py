"""The maps of one kernel: creation with its checks, look-up by address, references."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from errno import EINVAL

from emu.kernel.errors import KernelError
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.maps.array import ArrayMap, PerCpuArrayMap, check_array
from trampoline.bpf.maps.array_of_maps import ArrayOfMaps, check_array_of_maps
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.errors import UnsupportedMap
from trampoline.bpf.maps.fd_array import check_fd_array
from trampoline.bpf.maps.flags import MapFlag
from trampoline.bpf.maps.hash import HashMap, LruHashMap, LruPerCpuHashMap, PerCpuHashMap, check_hash
from trampoline.bpf.maps.map_env import MapSite
from trampoline.bpf.maps.prog_array import ProgArray
from trampoline.bpf.maps.ringbuf import RingBuffer, check_ringbuf
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

KINDS: Mapping[MapType, tuple[type[BpfMap], Callable[[MapSpec], None]]] = {
    MapType.HASH: (HashMap, check_hash),
    MapType.ARRAY: (ArrayMap, check_array),
    MapType.PROG_ARRAY: (ProgArray, check_fd_array),
    MapType.PERCPU_HASH: (PerCpuHashMap, check_hash),
    MapType.PERCPU_ARRAY: (PerCpuArrayMap, check_array),
    MapType.LRU_HASH: (LruHashMap, check_hash),
    MapType.LRU_PERCPU_HASH: (LruPerCpuHashMap, check_hash),
    MapType.ARRAY_OF_MAPS: (ArrayOfMaps, check_array_of_maps),
    MapType.RINGBUF: (RingBuffer, check_ringbuf),
}
"""Map types with guest code: the class, and the check before creation."""


def check_name(name: str) -> None:
    """``bpf_obj_name_cpy``: letters, digits, ``_`` and ``.`` only. Raises KernelError -EINVAL."""
    if not all(char.isascii() and (char.isalnum() or char in "_.") for char in name):
        raise KernelError(EINVAL, f"invalid map name {name!r}")


class Maps:
    """The existing maps, by guest address of their ``struct bpf_map``."""

    def __init__(self, site: MapSite) -> None:
        self._site = site
        self._by_address: dict[int, BpfMap] = {}
        self._next_id = 1

    def create(self, spec: MapSpec, btf: Btf | None = None) -> BpfMap:
        """Create a map (BPF_MAP_CREATE); after an error nothing stays allocated.

        ``btf`` contains the types of key and value. Raises KernelError: -EINVAL, -E2BIG, -ENOTSUPP from the type's
        checks, -ENOMEM; UnsupportedMap for a type that is not modelled.
        """
        try:
            kind = MapType(spec.type)
        except ValueError:
            raise KernelError(EINVAL, f"{spec.name}: no map type {spec.type}") from None
        if kind is MapType.UNSPEC:
            raise KernelError(EINVAL, f"{spec.name}: no map type {spec.type}")
        check_name(spec.name)
        if kind not in KINDS:
            raise UnsupportedMap(f"{spec.name}: maps of type {kind.name.lower()} are not modelled")
        if spec.type is MapType.RINGBUF and spec.flags & MapFlag.RB_OVERWRITE:
            raise UnsupportedMap(f"{spec.name}: a ring buffer that overwrites old records is not modelled")
        cls, check = KINDS[kind]
        check(spec)
        made = cls(self._site, spec, self._next_id, btf)
        with ExitStack() as undo:
            made.allocate(undo)
            undo.pop_all()
        self._next_id += 1
        self._by_address[made.address] = made
        if spec.readonly:
            made.freeze()
        return made

    def at(self, address: int) -> BpfMap:
        """The map at a guest address. Raises KernelError -EINVAL if none is there."""
        found = self._by_address.get(address)
        if found is None:
            raise KernelError(EINVAL, f"no map at {address:#x}")
        return found

    def get(self, found: BpfMap) -> None:
        """Take a reference (``bpf_map_inc``)."""
        found.refs += 1

    def put(self, found: BpfMap) -> None:
        """Drop a reference; the last one frees the map."""
        found.refs -= 1
        if not found.refs:
            del self._by_address[found.address]
            found.release()
            found.address = 0

    def close(self, found: BpfMap) -> None:
        """Drop user space's reference, taken by ``create``."""
        found.drop_user()
        self.put(found)

    def __iter__(self) -> Iterator[BpfMap]:
        return iter(list(self._by_address.values()))

    def __len__(self) -> int:
        return len(self._by_address)
