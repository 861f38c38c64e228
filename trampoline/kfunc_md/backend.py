"""Interface of a metadata back end; implemented by the hash table, padding and flat table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trampoline.kfunc_md.lookup import Entered, LookupRegisters

REGISTERS = LookupRegisters()


class NodeMemory(Protocol):
    """Allocator of metadata objects."""

    @property
    def objects(self) -> dict[int, str]:
        """Address and name of everything allocated."""
        ...

    def alloc(self, size: int, name: str, content: bytes = b"") -> int:
        """Allocates ``size`` bytes with ``content`` and then zeros; returns the guest address. KernelError -ENOMEM."""
        ...

    def free(self, address: int) -> None:
        """Frees an object."""
        ...


class MetadataBackend(Protocol):
    """Finds the metadata of a function, in guest code and in process context.

    ``prepare`` precedes ``insert``: only ``prepare`` can fail, and it then changes nothing.
    """

    @property
    def name(self) -> str:
        """Name by which it is selected."""
        ...

    @property
    def nodes(self) -> NodeMemory:
        """Allocator that its metadata objects must come from."""
        ...

    @property
    def symbols(self) -> dict[str, int]:
        """Symbols of the look-up's text."""
        ...

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, without the metadata objects themselves."""
        ...

    def lookup(
        self,
        entered: Entered,
        *,
        label: str,
        missing: str,
        registers: LookupRegisters = REGISTERS,
        checked: bool = False,
    ) -> str:
        """Assembly text of the look-up. Its labels begin with ``label``; without metadata it jumps to ``missing``.

        ``checked``: the code may be entered from functions that never had metadata.
        """
        ...

    def find(self, func: int) -> int:
        """Guest address of a function's metadata, 0 if it has none."""
        ...

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        """``find`` for many functions, by function."""
        ...

    def prepare(self, functions: Sequence[int]) -> None:
        """Reserves memory for metadata of functions that have none. KernelError."""
        ...

    def insert(self, mds: Mapping[int, int]) -> None:
        """Makes metadata visible to look-ups, ``{function: metadata}``, after ``prepare``."""
        ...

    def remove(self, functions: Sequence[int]) -> None:
        """Hides metadata from new look-ups; those in flight may still use it."""
        ...

    def shrink(self) -> None:
        """Shrinks tables after removals. KernelError -ENOMEM; nothing is changed then."""
        ...

    def forget(self, functions: Sequence[int]) -> None:
        """Releases data of removed functions, after the grace periods that follow ``remove``."""
        ...
