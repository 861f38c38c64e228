"""What a store of metadata must be able to do. Hash table, padding and flat table are its implementations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trampoline.kfunc_md.lookup import Entered, LookupRegisters

REGISTERS = LookupRegisters()


class NodeMemory(Protocol):
    """Where metadata objects are allocated."""

    @property
    def objects(self) -> dict[int, str]:
        """Address and name of everything allocated."""
        ...

    def alloc(self, size: int, name: str, content: bytes = b"") -> int:
        """Guest address of ``size`` bytes, ``content`` and then zeros. KernelError (-ENOMEM)."""
        ...

    def free(self, address: int) -> None:
        """Give an object back."""
        ...


class MetadataBackend(Protocol):
    """Finds the metadata of a function, in guest code and in process context.

    ``prepare``, then ``insert``: everything that can fail does in the first, and leaves everything as it was.
    """

    @property
    def name(self) -> str:
        """What it is selected by."""
        ...

    @property
    def nodes(self) -> NodeMemory:
        """Where its metadata objects must be."""
        ...

    @property
    def symbols(self) -> dict[str, int]:
        """What the look-up's text refers to."""
        ...

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, beside the metadata objects themselves."""
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
        """Assembly text. Labels begin with ``label``; ``missing`` is where it jumps to without metadata.

        ``checked``: the code may be entered from functions that never had metadata.
        """
        ...

    def find(self, func: int) -> int:
        """Guest address of a function's metadata, 0 without."""
        ...

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        """The same for many functions."""
        ...

    def prepare(self, functions: Sequence[int]) -> None:
        """Make room for metadata of functions that have none. KernelError."""
        ...

    def insert(self, mds: Mapping[int, int]) -> None:
        """Let look-ups find metadata, ``{function: metadata}``, that ``prepare`` made room for."""
        ...

    def remove(self, functions: Sequence[int]) -> None:
        """Let look-ups find nothing any more; those under way still may use what they found."""
        ...

    def shrink(self) -> None:
        """Give back what fewer metadata objects need no more. KernelError (-ENOMEM): nothing was changed."""
        ...

    def forget(self, functions: Sequence[int]) -> None:
        """The grace periods since ``remove`` are over: no look-up is under way that saw that metadata."""
        ...
