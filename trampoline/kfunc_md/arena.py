"""Metadata objects in the top 2 GiB, within reach of a sign-extended 32-bit pointer."""

from collections import deque
from errno import ENOMEM
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from emu.errors import OutOfMemory
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.mm.slab import POISON
from emu.kernel.process_context import PointKind

CHUNK = 64 << 10
"""Growth step of an arena in bytes. An arena never shrinks."""
TOP_2GIB = 0xFFFF_FFFF_8000_0000


class Accounted(Protocol):
    """Memory outside the kernel's slab."""

    @property
    def used(self) -> int:
        """Bytes in use."""
        ...


_ACCOUNTS: WeakKeyDictionary[Kernel, WeakSet[Accounted]] = WeakKeyDictionary()


def account(kernel: Kernel, memory: Accounted) -> None:
    """Registers memory for ``bytes_beside_slab``, while the object exists."""
    _ACCOUNTS.setdefault(kernel, WeakSet()).add(memory)


def bytes_beside_slab(kernel: Kernel) -> int:
    """Bytes of a kernel's metadata outside its slab, of all designs."""
    return sum(memory.used for memory in _ACCOUNTS.get(kernel, ()))


class MdArena:
    """Allocator near modules and images: objects are zeroed when allocated and poisoned when freed; the oldest freed is
    reused first.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._objects: dict[int, tuple[int, str]] = {}
        self._freed: dict[int, deque[int]] = {}
        self._next = self._limit = 0
        self.reserved = 0
        """Bytes of its chunks, used or free."""
        account(kernel, self)

    @property
    def objects(self) -> dict[int, str]:
        """Address and name of everything allocated."""
        return {address: name for address, (_, name) in self._objects.items()}

    @property
    def used(self) -> int:
        """Bytes in use."""
        return sum(size for size, _ in self._objects.values())

    def alloc(self, size: int, name: str, content: bytes = b"") -> int:
        """Allocates ``size`` bytes, 8-byte aligned, with ``content`` and then zeros; returns the guest address.
        KernelError -ENOMEM.
        """
        self._kernel.process.point(PointKind.ALLOC, name)
        freed = self._freed.get(size)
        address = freed.popleft() if freed else self._take((size + 7) & -8, name)
        self._kernel.machine.write(address, content.ljust(size, b"\0"))
        self._objects[address] = size, name
        return address

    def free(self, address: int) -> None:
        """Frees an object."""
        size, _ = self._objects.pop(address)
        self._kernel.machine.write(address, bytes([POISON]) * size)
        self._freed.setdefault(size, deque()).append(address)

    def _take(self, size: int, name: str) -> int:
        if self._next + size > self._limit:
            try:
                start = self._kernel.module_data(CHUNK, 4096)
            except OutOfMemory as error:
                raise KernelError(ENOMEM, f"no memory for {name}") from error
            if start < TOP_2GIB:
                raise KernelError(ENOMEM, f"no memory for {name} in the top 2 GiB")
            self._next, self._limit = start, start + CHUNK
            self.reserved += CHUNK
        self._next += size
        return self._next - size
