"""Metadata found through a table as flat as text itself: a 32-bit pointer for each 16 bytes of the top 2 GiB.

512 MiB of addresses, of which only pages that hold a pointer are populated; one page serves 16 KiB of text. As quick as
padding, on kernels without it, and attaching writes no text for it; the price is memory, a quarter of the text that
traced functions stand in.
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
    """Guest address of a function's entry; -EOPNOTSUPP where it can have none."""
    if func < TOP_2GIB or func & 15:
        raise KernelError(EOPNOTSUPP, f"the function at {func:#x} is not 16-byte aligned text of the top 2 GiB")
    return (((func - (1 << 64)) >> 4) * 4 + FLAT_BASE) & ADDRESS_MASK


class FlatTable:
    """Metadata pointers in a sparse table. A page is given back with the grace period of its last metadata.

    A look-up of a function whose page is not populated faults: code that looks up must be entered from functions that
    have metadata, or had some less than a grace period ago, as stubs are.
    """

    name = "flat"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._machine = kernel, kernel.machine
        self.nodes = MdArena(kernel)
        self._pages: dict[int, int] = {}
        account(kernel, self)

    @property
    def symbols(self) -> dict[str, int]:
        """None: the table stands where it stands."""
        return {}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of populated pages."""
        return {"flat table": self.used}

    @property
    def used(self) -> int:
        """The same without a name."""
        return PAGE_SIZE * len(self._pages)

    def find(self, func: int) -> int:
        """Guest address of a function's metadata, 0 without."""
        if func < TOP_2GIB or func & 15 or (at := entry_address(func)) & -PAGE_SIZE not in self._pages:
            return 0
        found = self._machine.read_u32(at)
        return found and found | TOP_2GIB

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        """The same for many functions."""
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
        """``flat_lookup``; ``checked`` changes nothing."""
        return flat_lookup(entered, label=label, missing=missing, registers=registers)

    def prepare(self, functions: Sequence[int]) -> None:
        """Populate pages. KernelError: -EOPNOTSUPP, -ENOMEM."""
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
        """One store each."""
        for func, md in mds.items():
            at = entry_address(func)
            self._pages[at & -PAGE_SIZE] += 1
            self._machine.write_u32(at, md & 0xFFFF_FFFF)

    def remove(self, functions: Sequence[int]) -> None:
        """One store each."""
        for func in functions:
            self._machine.write_u32(entry_address(func), 0)

    def shrink(self) -> None:
        """Pages go with the grace period of their last metadata."""

    def forget(self, functions: Sequence[int]) -> None:
        """Give pages back that no metadata is found through any more."""
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
                raise KernelError(ENOMEM, f"something else is at {page:#x}, where the flat table should be")
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
    """Start and size of the ranges that pages make up."""
    start = end = 0
    for page in sorted(pages):
        if page != end:
            if end:
                yield start, end - start
            start = page
        end = page + PAGE_SIZE
    if end:
        yield start, end - start
