"""Hash maps: elements in bucket lists in guest memory, walked by programs' look-ups (kernel/bpf/hashtab.c).

Elements are allocated with the map (preallocated) or one by one (BPF_F_NO_PREALLOC). Free elements are in one list; the
kernel has one list and a spare element per CPU. The hash has no random seed, so that runs repeat.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from errno import E2BIG, EINVAL, ENOENT

from emu.kernel.errors import KernelError
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import StructView
from emu.machine.address_map import round_up
from trampoline.bpf.errors import ENOTSUPP
from trampoline.bpf.maps.array import check_access
from trampoline.bpf.maps.bpf_map import BpfMap, PerCpuFace, check_present, check_update, is_percpu
from trampoline.bpf.maps.flags import HASH_FLAGS, KMALLOC_MAX_SIZE, PCPU_MIN_UNIT_SIZE, MapFlag
from trampoline.bpf.maps.jhash import jhash
from trampoline.bpf.maps.rules import KEY_OFFSET, bucket, htab_elem
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

_NEXT, _HASH = htab_elem.offset("next"), htab_elem.offset("hash")
_IN_USE, _REF = htab_elem.offset("lru_type"), htab_elem.offset("lru_ref")


def check_hash(spec: MapSpec) -> None:
    """``htab_map_alloc_check``. Raises KernelError -EINVAL, -E2BIG, -ENOTSUPP."""
    percpu, lru = is_percpu(spec.type), spec.type in (MapType.LRU_HASH, MapType.LRU_PERCPU_HASH)
    check_access(spec, HASH_FLAGS)
    if not lru and spec.flags & MapFlag.NO_COMMON_LRU:
        raise KernelError(EINVAL, f"{spec.name}: BPF_F_NO_COMMON_LRU without LRU")
    if lru and spec.flags & MapFlag.NO_PREALLOC:
        raise KernelError(ENOTSUPP, f"{spec.name}: LRU maps are preallocated")
    if spec.flags & MapFlag.NUMA_NODE and (percpu or spec.flags & MapFlag.NO_COMMON_LRU):
        raise KernelError(EINVAL, f"{spec.name}: per-CPU memory is on every node")
    if spec.max_entries <= 0 or spec.key_size <= 0 or spec.value_size <= 0:
        sizes = f"a key of {spec.key_size}, a value of {spec.value_size}, {spec.max_entries} entries"
        raise KernelError(EINVAL, f"{spec.name}: {sizes}")
    if spec.key_size + spec.value_size >= KMALLOC_MAX_SIZE - KEY_OFFSET:
        raise KernelError(E2BIG, f"{spec.name}: an element of {spec.key_size + spec.value_size} bytes")
    if percpu and round_up(spec.value_size, 8) > PCPU_MIN_UNIT_SIZE:
        raise KernelError(E2BIG, f"{spec.name}: a value of {spec.value_size} bytes")
    if spec.max_entries > 1 << 31:
        raise KernelError(E2BIG, f"{spec.name}: {spec.max_entries} entries")


class HashMap(BpfMap):
    """``BPF_MAP_TYPE_HASH``."""

    operations = {  # noqa: RUF012
        "map_lookup_elem": "htab_map_lookup_elem",
        "map_update_elem": "htab_map_update_elem",
        "map_delete_elem": "htab_map_delete_elem",
        "map_for_each_callback": "bpf_for_each_hash_elem",
    }

    _elems = 0
    _buckets = 0

    # Memory ---------------------------------------------------------------------------------------------------------

    @property
    def key_space(self) -> int:
        """Size of a key in bytes, including padding; the value follows."""
        return round_up(self.spec.key_size, 8)

    @property
    def elem_size(self) -> int:
        """Size of an element in bytes."""
        return KEY_OFFSET + self.key_space + self.value_space

    @property
    def value_space(self) -> int:
        """Size of the value in an element in bytes."""
        return round_up(self.spec.value_size, 8)

    @property
    def is_preallocated(self) -> bool:
        """True if elements are allocated with the map."""
        return not self.spec.flags & MapFlag.NO_PREALLOC

    @property
    def _elements(self) -> int:
        """Number of preallocated elements: an update in a full map needs one more for a short time."""
        return self.spec.max_entries + len(self.machine.vcpus)

    def allocate(self, undo: ExitStack) -> None:
        """The structure, the buckets and, if preallocated, the elements."""
        memory, name = self.site.memory, self.name
        self.address = memory.alloc(self.layout.bpf_htab.size, f"bpf_map {name}")
        undo.callback(memory.free, self.address)
        n_buckets = 1 << (self.spec.max_entries - 1).bit_length()
        self._buckets = memory.alloc(bucket.size * n_buckets, f"buckets of {name}")
        undo.callback(memory.free, self._buckets)
        if self.is_preallocated:
            self._elems = memory.alloc(self.elem_size * self._elements, f"elements of {name}")
            undo.callback(memory.free, self._elems)
        self.fill_in()
        view = self._htab
        view.buckets, view.n_buckets, view.elems, view.elem_size = self._buckets, n_buckets, self._elems, self.elem_size
        # Each list ends with its bucket's number (hlist_nulls), so that a walk that ended in another list detects it.
        ends = (1 | number << 1 for number in range(n_buckets))
        content = b"".join(end.to_bytes(8, "little") + bytes(bucket.size - 8) for end in ends)
        self.machine.write(self._buckets, content)
        if self._elems:
            self._prepare(undo)

    def _prepare(self, undo: ExitStack) -> None:
        """Put all elements into the free list, the first in front."""
        for number in reversed(range(self._elements)):
            self._give(self._elems + number * self.elem_size)

    def release(self) -> None:
        if not self.is_preallocated:
            for element in list(self._walk_all()):
                self._free_element(element)
        else:
            self.site.memory.free(self._elems)
        self.site.memory.free(self._buckets)
        self.site.memory.free(self.address)

    @property
    def _htab(self) -> StructView:
        return self.layout.bpf_htab.view(self.machine, self.address)

    # Elements -------------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        """An element for a new key: a free one, or new memory. Raises KernelError -E2BIG, -ENOMEM."""
        if not self.is_preallocated:
            return self.kernel.slab.alloc(self.elem_size, f"element of {self.name}")
        view = self._htab
        element = int(view.freelist)
        view.freelist = self.machine.read_u64(element + _NEXT)
        return element

    def _give(self, element: int) -> None:
        """Return an unlinked element to the free list; separately allocated memory after a grace period."""
        if self.is_preallocated:
            view = self._htab
            self.machine.write_u64(element + _NEXT, int(view.freelist))
            view.freelist = element
            return
        self.kernel.rcu.call(RcuFlavour.RCU, lambda: self._free_element(element))

    def _free_element(self, element: int) -> None:
        self.kernel.slab.free(element)

    def _head(self, hashed: int) -> int:
        return self._buckets + bucket.size * (hashed & int(self._htab.n_buckets) - 1)

    def _walk(self, head: int) -> Iterator[int]:
        """The elements of a bucket."""
        element = self.machine.read_u64(head)
        while not element & 1:
            following = self.machine.read_u64(element + _NEXT)
            yield element
            element = following

    def _walk_all(self) -> Iterator[int]:
        for number in range(int(self._htab.n_buckets)):
            yield from self._walk(self._buckets + bucket.size * number)

    def _key_of(self, element: int) -> bytes:
        return self.machine.read(element + KEY_OFFSET, self.spec.key_size)

    def _find(self, key: bytes) -> tuple[int, int]:
        """The element of a key, or 0, and the address of the link to it."""
        hashed = jhash(key, int(self._htab.hashrnd))
        link = self._head(hashed)
        for element in self._walk(link):
            if self.machine.read_u32(element + _HASH) == hashed and self._key_of(element) == key:
                return element, link
            link = element + _NEXT
        return 0, link

    def _value_of(self, element: int) -> int:
        return element + KEY_OFFSET + self.key_space

    def _insert(self, key: bytes, element: int) -> None:
        """Write an element's key and insert it at the front of its bucket's list."""
        machine = self.machine
        hashed = jhash(key, int(self._htab.hashrnd))
        head = self._head(hashed)
        machine.write_u32(element + _HASH, hashed)
        machine.write(element + KEY_OFFSET, key)
        machine.write_u64(element + _NEXT, machine.read_u64(head))
        machine.write_u64(head, element)

    def _unlink(self, element: int, link: int) -> None:
        self.machine.write_u64(link, self.machine.read_u64(element + _NEXT))

    # Operations -----------------------------------------------------------------------------------------------------

    def lookup(self, key: bytes) -> int:
        """Address of a key's value, 0 if missing."""
        element, _ = self._find(key)
        return self._value_of(element) if element else 0

    def update_elem(self, key: bytes, value: bytes, flags: int = 0, cpu: int | None = None) -> None:
        """Replace an existing element by a new one, so that readers of the old one see a consistent value."""
        check_update(self.name, flags)
        old, _ = self._find(key)
        check_present(self.name, flags, there=bool(old))
        if not old:
            self._make_room()
        element = self._take()
        self._set_value(element, value, cpu)
        self._insert(key, element)
        if old:
            # The new element is now in front of it; this may have changed the old one's link.
            self._unlink(old, self._link_of(old, key))
            self._give(old)
            self._written_again(element)
        else:
            view = self._htab
            view.count += 1

    def _link_of(self, wanted: int, key: bytes) -> int:
        link = self._head(jhash(key, int(self._htab.hashrnd)))
        for element in self._walk(link):
            if element == wanted:
                break
            link = element + _NEXT
        return link

    def _make_room(self) -> None:
        if int(self._htab.count) >= self.spec.max_entries:
            raise KernelError(E2BIG, f"{self.name} has {self.spec.max_entries} keys already")

    def _set_value(self, element: int, value: bytes, cpu: int | None) -> None:
        self.machine.write(self._value_of(element), value)

    def _written_again(self, element: int) -> None:
        """Called when an element has a new value for an existing key."""

    def delete_elem(self, key: bytes) -> None:
        """Remove a key. Raises KernelError -ENOENT."""
        element, link = self._find(key)
        if not element:
            raise KernelError(ENOENT, f"{self.name} has no such key")
        self._remove(element, link)

    def _remove(self, element: int, link: int) -> None:
        self._unlink(element, link)
        view = self._htab
        view.count -= 1
        self._give(element)

    def keys_in_memory(self) -> Iterator[bytes]:
        """The keys by bucket, the newest of each first."""
        return map(self._key_of, self._walk_all())

    def __len__(self) -> int:
        return int(self._htab.count)


class PerCpuHashMap(PerCpuFace, HashMap):
    """``BPF_MAP_TYPE_PERCPU_HASH``: an element contains a per-CPU pointer."""

    operations = {  # noqa: RUF012
        "map_lookup_elem": "htab_percpu_map_lookup_elem",
        "map_update_elem": "htab_percpu_map_update_elem",
        "map_delete_elem": "htab_map_delete_elem",
        "map_lookup_percpu_elem": "htab_percpu_map_lookup_percpu_elem",
        "map_for_each_callback": "bpf_for_each_hash_elem",
    }

    _values = 0

    @property
    def value_space(self) -> int:
        return 8

    def _prepare(self, undo: ExitStack) -> None:
        """Each element keeps its per-CPU memory permanently."""
        self._values = self.kernel.percpu.alloc(self.stride * self._elements, f"values of {self.name}")
        undo.callback(self.kernel.percpu.free, self._values)
        for number in range(self._elements):
            pointer = self._value_of(self._elems + number * self.elem_size)
            self.machine.write_u64(pointer, self._values + number * self.stride)
        super()._prepare(undo)

    def release(self) -> None:
        super().release()
        if self._values:
            self.kernel.percpu.free(self._values)

    def _take(self) -> int:
        element = super()._take()
        if not self.is_preallocated:
            try:
                pptr = self.kernel.percpu.alloc(self.stride, f"value of {self.name}")
            except BaseException:
                self.kernel.slab.free(element)
                raise
            self.machine.write_u64(self._value_of(element), pptr)
        return element

    def _free_element(self, element: int) -> None:
        self.kernel.percpu.free(self._pptr(element))
        super()._free_element(element)

    def _pptr(self, element: int) -> int:
        return self.machine.read_u64(self._value_of(element))

    def lookup(self, key: bytes) -> int:
        """Address of a key's value on CPU 0."""
        element, _ = self._find(key)
        return self.kernel.percpu.address(self._pptr(element), 0) if element else 0

    def read_value(self, key: bytes) -> bytes | None:
        element, _ = self._find(key)
        return self.read_cpus(self._pptr(element)) if element else None

    def update_elem(self, key: bytes, value: bytes, flags: int = 0, cpu: int | None = None) -> None:
        """An existing element gets the new values in place; in a new one the other CPUs' values are zero."""
        check_update(self.name, flags)
        old, _ = self._find(key)
        check_present(self.name, flags, there=bool(old))
        if old:
            self.write_cpus(self._pptr(old), value, cpu)
            self._written_again(old)
            return
        self._make_room()
        element = self._take()
        self.write_cpus(self._pptr(element), value, cpu, others=True)
        self._insert(key, element)
        view = self._htab
        view.count += 1


class LruHashMap(HashMap):
    """``BPF_MAP_TYPE_LRU_HASH``: a full map removes a key that was not looked up recently.

    Simpler than the kernel's lists: elements are checked in turn, and one that was looked up by a program or rewritten
    since its last check is kept. The kernel may remove keys before the map is full.
    """

    operations = {  # noqa: RUF012
        "map_lookup_elem": "htab_lru_map_lookup_elem",
        "map_update_elem": "htab_lru_map_update_elem",
        "map_delete_elem": "htab_lru_map_delete_elem",
        "map_for_each_callback": "bpf_for_each_hash_elem",
    }

    def _make_room(self) -> None:
        view, machine = self._htab, self.machine
        if int(view.count) < self.spec.max_entries:
            return
        # Two rounds at most: the first clears every reference bit.
        for _ in range(2 * self._elements):
            element = self._elems + int(view.lru_hand) % self._elements * self.elem_size
            view.lru_hand = (int(view.lru_hand) + 1) % self._elements
            if not machine.read_u8(element + _IN_USE):
                continue
            if not machine.read_u8(element + _REF):
                self._remove(element, self._link_of(element, self._key_of(element)))
                return
            machine.write_u8(element + _REF, 0)

    def _insert(self, key: bytes, element: int) -> None:
        super()._insert(key, element)
        self.machine.write_u8(element + _REF, 0)
        self.machine.write_u8(element + _IN_USE, 1)

    def _give(self, element: int) -> None:
        self.machine.write_u8(element + _IN_USE, 0)
        super()._give(element)

    def _written_again(self, element: int) -> None:
        self.machine.write_u8(element + _REF, 1)


class LruPerCpuHashMap(LruHashMap, PerCpuHashMap):
    """``BPF_MAP_TYPE_LRU_PERCPU_HASH``."""

    operations = {  # noqa: RUF012
        "map_lookup_elem": "htab_lru_percpu_map_lookup_elem",
        "map_update_elem": "htab_lru_percpu_map_update_elem",
        "map_delete_elem": "htab_lru_map_delete_elem",
        "map_lookup_percpu_elem": "htab_lru_percpu_map_lookup_percpu_elem",
        "map_for_each_callback": "bpf_for_each_hash_elem",
    }
