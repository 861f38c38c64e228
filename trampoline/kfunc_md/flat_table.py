"""Metadata back end ``flat``: a table with a 32-bit pointer for each 16 bytes of the top 2 GiB.

It covers 512 MiB of addresses; only pages with a pointer are populated, one for each 16 KiB of text. As fast as
padding, on kernels without it, and attaching writes no text for it; it costs memory, a quarter of the size of the text
pages with traced functions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from errno import ENOMEM, EOPNOTSUPP

from emu.errors import OutOfMemory
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import PointKind
from emu.machine.address_map import ADDRESS_MASK, PAGE_SIZE
from emu.machine.machine import Prot
from trampoline.kfunc_md.arena import TOP_2GIB, MdArena, account
from trampoline.kfunc_md.backend import REGISTERS
from trampoline.kfunc_md.lookup import FLAT_BASE, Entered, LookupRegisters, flat_lookup


def entry_address(func: int) -> int:
    """Guest address of a function's table entry. KernelError -EOPNOTSUPP if it can have none."""
    if func < TOP_2GIB or func & 15:
        raise KernelError(EOPNOTSUPP, f"the function at {func:#x} is not 16-byte aligned text of the top 2 GiB")
    return (((func - (1 << 64)) >> 4) * 4 + FLAT_BASE) & ADDRESS_MASK


class FlatTable:
    """Metadata pointers in a sparse table. A page is freed after the grace period of its last metadata.

    A look-up in a page that is not populated faults: look-ups must run only in code entered from functions that have
    metadata, or had it less than a grace period ago, as in stubs.
    """

    name = "flat"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._machine = kernel, kernel.machine
        self.nodes = MdArena(kernel)
        self._pages: dict[int, int] = {}
        account(kernel, self)

    @property
    def symbols(self) -> dict[str, int]:
        """Empty: the table's address is fixed."""
        return {}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of populated pages, by kind."""
        return {"flat table": self.used}

    @property
    def used(self) -> int:
        """Bytes of populated pages."""
        return PAGE_SIZE * len(self._pages)

    def find(self, func: int) -> int:
        if func < TOP_2GIB or func & 15 or (at := entry_address(func)) & -PAGE_SIZE not in self._pages:
            return 0
        found = self._machine.read_u32(at)
        return found and found | TOP_2GIB

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        return {func: self.find(func) for func in functions}

    def lookup(
        self,
        entered: Entered,
        *,
        label: str,
        missing: str,
        registers: LookupRegisters = REGISTERS,
        checked: bool = False,
    ) -> str:
        """``flat_lookup``; ``checked`` has no effect."""
        return flat_lookup(entered, label=label, missing=missing, registers=registers)

    def prepare(self, functions: Sequence[int]) -> None:
        """Populates pages. KernelError: -EOPNOTSUPP, -ENOMEM."""
        wanted = {entry_address(func) & -PAGE_SIZE for func in functions} - self._pages.keys()
        made: list[int] = []
        try:
            for start, size in _runs(wanted):
                self._populate(start, size)
                made += range(start, start + size, PAGE_SIZE)
        except BaseException:
            self._give_back(made)
            raise

    def insert(self, mds: Mapping[int, int]) -> None:
        """Writes one entry for each function."""
        for func, md in mds.items():
            at = entry_address(func)
            self._pages[at & -PAGE_SIZE] += 1
            self._machine.write_u32(at, md & 0xFFFF_FFFF)

    def remove(self, functions: Sequence[int]) -> None:
        """Clears one entry for each function."""
        for func in functions:
            self._machine.write_u32(entry_address(func), 0)

    def shrink(self) -> None:
        """Does nothing: ``forget`` frees pages."""

    def forget(self, functions: Sequence[int]) -> None:
        """Frees pages without metadata."""
        empty = []
        for func in functions:
            page = entry_address(func) & -PAGE_SIZE
            self._pages[page] -= 1
            if not self._pages[page]:
                empty.append(page)
        self._give_back(empty)

    def _populate(self, start: int, size: int) -> None:
        pages = range(start, start + size, PAGE_SIZE)
        for page in pages:
            self._kernel.process.point(PointKind.ALLOC, f"a page of the flat table at {page:#x}")
            if self._machine.is_mapped(page):
                raise KernelError(ENOMEM, f"the flat table's page at {page:#x} is mapped by something else")
        try:
            self._machine.map(start, size, Prot.READ | Prot.WRITE, name="flat table of metadata")
        except OutOfMemory as error:
            raise KernelError(ENOMEM, f"no pages for the flat table at {start:#x}") from error
        self._pages.update(dict.fromkeys(pages, 0))

    def _give_back(self, pages: Iterable[int]) -> None:
        for start, size in _runs(pages):
            self._machine.unmap(start, size)
            for page in range(start, start + size, PAGE_SIZE):
                del self._pages[page]


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Start and size in bytes of the contiguous ranges of pages."""
    start = end = 0
    for page in sorted(pages):
        if page != end:
            if end:
                yield start, end - start
            start = page
        end = page + PAGE_SIZE
    if end:
        yield start, end - start
