"""Base of all maps: a structure in guest memory, references, and Python's mapping protocol."""

import operator
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from errno import E2BIG, EEXIST, EINVAL, ENOENT, EPERM
from typing import Any

from emu.kernel.errors import KernelError
from emu.kernel.structs import StructView
from emu.machine.address_map import round_up
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.maps.flags import BPF_EXIST, BPF_F_LOCK, BPF_NOEXIST, UpdateFlag
from trampoline.bpf.maps.map_env import MapSite
from trampoline.bpf.maps.value_format import ValueFormat, format_of
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

__all__ = ["BpfMap"]


class BpfMap(MutableMapping[Any, Any]):
    """A map of one kernel, as user space sees it: ``counts[3]``, ``counts[3] = 5``, ``del counts[3]``, ``for key in``.

    Keys and values have their BTF types (``trampoline.bpf.maps.value_format``), or are bytes. A missing key is a
    KeyError, a refusal by the kernel a KernelError, an invalid key or value a MapValueError. The implementations of the
    operations that programs call are here too, with keys and values as bytes.
    """

    operations: dict[str, str] = {}  # noqa: RUF012  # a constant of each class
    """Kernel functions of ``map->ops``, by member."""

    def __init__(self, site: MapSite, spec: MapSpec, ident: int, btf: Btf | None) -> None:
        self.site, self.spec, self.id = site, spec, ident
        self.name, self.type = spec.name, spec.type
        self.kernel, self.machine, self.layout = site.kernel, site.kernel.machine, site.layout
        self.address = 0
        """Guest address of its ``struct bpf_map``; 0 once it is freed."""
        self.refs = 1
        self.frozen = False
        """True after BPF_MAP_FREEZE: user space may not write any more."""
        self.key_format: ValueFormat = format_of(btf, spec.key_type, spec.key_size)
        self.value_format: ValueFormat = format_of(btf, spec.value_type, spec.value_size)

    def __repr__(self) -> str:
        return f"<BpfMap {self.name!r} ({self.type.name.lower()}) at {self.address:#x}>"

    # Memory ---------------------------------------------------------------------------------------------------------

    def allocate(self, undo: ExitStack) -> None:
        """Allocate guest memory and fill in the structure; ``undo`` collects the releases. Raises KernelError."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the guest memory."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop user space's reference: ``Maps.close``."""
        self.site.maps.close(self)

    def drop_user(self) -> None:
        """User space dropped its last reference; programs may still use the map (``map_release_uref``)."""

    @property
    def view(self) -> StructView:
        """Its ``struct bpf_map``."""
        return self.layout.bpf_map.view(self.machine, self.address)

    def fill_in(self) -> None:
        """Write the members common to all maps' structures."""
        view, spec = self.view, self.spec
        view.ops = self.site.ops(self.type)
        view.map_type, view.key_size, view.value_size = int(spec.type), spec.key_size, spec.value_size
        view.max_entries, view.map_flags, view.id = spec.max_entries, spec.flags, self.id
        view.btf_key_type_id, view.btf_value_type_id = spec.key_type, spec.value_type
        view.name = spec.name.encode()[:15]
        view.refcnt = view.usercnt = 1
        view.bypass_spec_v1 = 1

    def freeze(self) -> None:
        """Make it read-only for user space; -EBUSY is not modelled: no writable mappings exist."""
        self.frozen = True
        self.view.frozen = 1

    def check_writable(self) -> None:
        """Raise KernelError -EPERM if user space must not write."""
        if self.frozen:
            raise KernelError(EPERM, f"{self.name} is frozen")

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    # Operations of programs and user space, in bytes -----------------------------------------------------------------

    def lookup(self, key: bytes) -> int:
        """Guest address of a key's value, on CPU 0 for per-CPU maps; 0 if missing. Raises KernelError."""
        raise KernelError(EINVAL, f"{self.name}: a {self.type.name.lower()} map has no look-up")

    def update_elem(self, key: bytes, value: bytes, flags: int = 0, cpu: int | None = None) -> None:
        """Set a key's value, for per-CPU maps only on ``cpu`` if given. Raises KernelError."""
        raise KernelError(EINVAL, f"{self.name}: a {self.type.name.lower()} map has no update")

    def delete_elem(self, key: bytes) -> None:
        """Remove a key. Raises KernelError -ENOENT if missing, -EINVAL if keys are permanent."""
        raise KernelError(EINVAL, f"{self.name}: keys of a {self.type.name.lower()} map cannot be removed")

    def keys_in_memory(self) -> Iterator[bytes]:
        """The keys in the order of BPF_MAP_GET_NEXT_KEY. Raises KernelError for a map without keys."""
        raise KernelError(EINVAL, f"{self.name}: a {self.type.name.lower()} map has no keys")

    def read_value(self, key: bytes) -> bytes | None:
        """A key's value (the values of all CPUs, concatenated), None if missing."""
        address = self.lookup(key)
        return self.machine.read(address, self.spec.value_size) if address else None

    # Mapping protocol ------------------------------------------------------------------------------------------------

    def put(self, key: Any, value: Any, flags: UpdateFlag | int = UpdateFlag.ANY) -> None:
        """Set a value as BPF_MAP_UPDATE_ELEM does with ``flags``.

        Raises KernelError: -EEXIST, -ENOENT, -E2BIG if full, -EINVAL, -EPERM for a frozen map.
        """
        self.check_writable()
        encoded, content = self.key_format.encode(key), self._encode(value)
        if self._called("map_update_elem", encoded, content, int(flags)) is None:
            self.update_elem(encoded, content, int(flags))

    def _called(self, member: str, key: bytes, value: bytes | None = None, flags: int = 0) -> int | None:
        """Call the kernel's function, as a system call does, so that programs attached to it run. Raises KernelError.

        Returns None if user space has no such function, or if called from a busy CPU.
        """
        function = self.operations.get(member)
        if function is None or is_percpu(self.type) or any(vcpu.is_running for vcpu in self.machine.vcpus):
            return None
        slab = self.kernel.slab
        with ExitStack() as scratch:
            args = [self.address]
            for content in (key, value) if value is not None else (key,):
                args.append(slab.alloc(len(content), f"for a system call on {self.name}", content))
                scratch.callback(slab.free, args[-1])
            result = self.kernel.call(self.site.function(function), *args, flags & (1 << 64) - 1).value
        result -= result >> 63 << 64
        if result < 0:
            raise KernelError(-result, f"{self.name}: {member}")
        return result

    def _encode(self, value: Any) -> bytes:
        return self.value_format.encode(value)

    def _decode(self, data: bytes) -> Any:
        return self.value_format.decode(data)

    def __getitem__(self, key: Any) -> Any:
        data = self.read_value(self.key_format.encode(key))
        if data is None:
            raise KeyError(key)
        return self._decode(data)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.check_writable()
        encoded = self.key_format.encode(key)
        try:
            if self._called("map_delete_elem", encoded) is None:
                self.delete_elem(encoded)
        except KernelError as error:
            if error.errno != ENOENT:
                raise
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return self.read_value(self.key_format.encode(key)) is not None

    def __iter__(self) -> Iterator[Any]:
        return map(self.key_format.decode, list(self.keys_in_memory()))

    def __len__(self) -> int:
        return sum(1 for _ in self.keys_in_memory())

    def clear(self) -> None:
        """Remove every key. Raises KernelError -EINVAL if keys are permanent."""
        for key in list(self):
            del self[key]


class PerCpuFace(BpfMap):
    """Mapping protocol of per-CPU maps: values are lists with one item per CPU, or one value set on every CPU."""

    @property
    def cpus(self) -> int:
        """Number of CPUs of the kernel."""
        return len(self.machine.vcpus)

    @property
    def stride(self) -> int:
        """Size of a value in bytes, including padding."""
        return round_up(self.spec.value_size, 8)

    def _encode(self, value: Any) -> bytes:
        values = value if isinstance(value, list) else [value] * self.cpus
        if len(values) != self.cpus:
            raise KernelError(EINVAL, f"{self.name}: {len(values)} values for {self.cpus} CPUs")
        return b"".join(self.value_format.encode(one).ljust(self.stride, b"\0") for one in values)

    def _decode(self, data: bytes) -> Any:
        step, size = self.stride, self.spec.value_size
        return [self.value_format.decode(data[at : at + size]) for at in range(0, self.cpus * step, step)]

    def read_cpus(self, pptr: int) -> bytes:
        """The values at a per-CPU pointer."""
        areas = self.kernel.percpu_areas
        return b"".join(self.machine.read(area + pptr, self.stride) for area in areas)

    def write_cpus(self, pptr: int, value: bytes, cpu: int | None, *, others: bool = False) -> None:
        """Set all values, or one CPU's; ``others``: also zero those of the other CPUs."""
        size, step = self.spec.value_size, self.stride
        for index, area in enumerate(self.kernel.percpu_areas):
            if cpu is None:
                self.machine.write(area + pptr, value[index * step : index * step + size])
            elif index == cpu:
                self.machine.write(area + pptr, value[:size])
            elif others:
                self.machine.write(area + pptr, bytes(size))


def check_update(name: str, flags: int) -> None:
    """Check the flags of an update (kernel/bpf/*.c).

    Raises KernelError -EINVAL for unknown ones, and for BPF_F_LOCK: no value here has a lock.
    """
    if flags & ~BPF_F_LOCK > BPF_EXIST or flags & BPF_F_LOCK:
        raise KernelError(EINVAL, f"{name}: update with flags {flags:#x}")


def check_present(name: str, flags: int, *, there: bool) -> None:
    """Raise -EEXIST or -ENOENT if the flags require a new or an existing key (``check_flags``)."""
    if there and flags == BPF_NOEXIST:
        raise KernelError(EEXIST, f"{name} has this key")
    if not there and flags == BPF_EXIST:
        raise KernelError(ENOENT, f"{name} has no such key")


def index_of(key: bytes) -> int:
    """An array's key as an index."""
    return int.from_bytes(operator.getitem(key, slice(4)), "little")


def beyond(name: str, index: int) -> KernelError:
    """The error for an index beyond an array's end."""
    return KernelError(E2BIG, f"{name} has no element {index}")


def is_percpu(kind: MapType) -> bool:
    """True if the map type has a value for each CPU."""
    return kind in (MapType.PERCPU_ARRAY, MapType.PERCPU_HASH, MapType.LRU_PERCPU_HASH)
