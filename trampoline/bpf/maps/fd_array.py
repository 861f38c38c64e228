"""Base of arrays of programs and of maps (``bpf_fd_array_map_*`` in kernel/bpf/arraymap.c).

User space stores file descriptors; slots contain addresses, and hold a reference to their object.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from errno import EINVAL, ENOENT
from typing import Any, Generic, TypeVar

from emu.kernel.errors import KernelError
from trampoline.bpf.maps.array import ArrayLike, check_array
from trampoline.bpf.maps.bpf_map import beyond, index_of
from trampoline.bpf.maps.flags import MapFlag
from trampoline.bpf.program import MapSpec

Held = TypeVar("Held")


def check_fd_array(spec: MapSpec) -> None:
    """``fd_array_map_alloc_check``. Raises KernelError -EINVAL, -E2BIG."""
    if spec.value_size != 4:
        raise KernelError(EINVAL, f"{spec.name}: values of {spec.value_size} bytes; a file descriptor has 4")
    if spec.flags & (MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG):
        raise KernelError(EINVAL, f"{spec.name}: programs cannot read or write file descriptors")
    check_array(spec)


class FdArray(ArrayLike, Generic[Held]):
    """Base class: ``held[0] = something``, ``del held[0]``."""

    def allocate(self, undo: ExitStack) -> None:
        self._held: dict[int, Held] = {}
        super().allocate(undo)

    def release(self) -> None:
        self.clear()
        super().release()

    @property
    def elem_size(self) -> int:
        return 8

    def _set(self, index: int, held: Held | None) -> None:
        """Set or clear a slot, and drop the reference to its old object."""
        raise NotImplementedError

    def _index(self, key: bytes) -> int:
        index = index_of(key)
        if index >= self.spec.max_entries:
            raise beyond(self.name, index)
        return index

    def delete_elem(self, key: bytes) -> None:
        """Clear a slot. Raises KernelError -E2BIG, -ENOENT for an empty one."""
        index = self._index(key)
        if index not in self._held:
            raise KernelError(ENOENT, f"{self.name}: slot {index} is empty")
        self._set(index, None)

    def _checked(self, key: Any, flags: int) -> int:
        """The slot of an update. Raises KernelError -EINVAL for flags, -E2BIG."""
        if flags:
            raise KernelError(EINVAL, f"{self.name}: update with flags {flags:#x}")
        return self._index(self.key_format.encode(key))

    def __getitem__(self, key: Any) -> Held:
        found = self._held.get(index_of(self.key_format.encode(key)))
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return index_of(self.key_format.encode(key)) in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Clear every slot."""
        for index in list(self._held):
            self._set(index, None)
