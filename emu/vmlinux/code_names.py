"""Names of a kernel's code: its own symbols, its modules', and code that it generated while it ran."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from emu.vmlinux.kallsyms import Kallsyms

_KERNEL_MAP = 0xFFFFFFFF80000000
_TEXT = frozenset("tTwW")


class CodeRange(NamedTuple):
    """Code outside of the kernel's image. ``kind``: "bpf", "kprobe", "ftrace" or "module"."""

    start: int
    end: int
    name: str
    kind: str


class CodeNames:
    """Addresses to names and back. Of several symbols at one address the first that is text gives the name."""

    def __init__(self, symbols: Kallsyms, ranges: Iterable[CodeRange] = ()) -> None:
        self.symbols = symbols
        self.ranges = sorted(ranges)
        self._starts = [one.start for one in self.ranges]
        self._by_name = {one.name: one.start for one in reversed(self.ranges)}
        self._known: dict[int, str] = {}

    def address(self, name: str) -> int | None:
        """Address of a function: the kernel's own, a module's or generated code."""
        found = self.symbols.get(name)
        return self._by_name.get(name) if found is None else found

    def range_at(self, address: int) -> CodeRange | None:
        """The generated or module code that covers an address."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self.ranges[place].end:
            return self.ranges[place]
        return None

    def _symbol(self, address: int) -> tuple[str, int] | None:
        addresses = self.symbols.addresses
        end = self.symbols.get("_end")
        place = bisect_right(addresses, address) - 1
        if place < 0 or address < _KERNEL_MAP or addresses[place] < _KERNEL_MAP or (end and address >= end):
            return None
        start = addresses[place]
        first = place
        while first and addresses[first - 1] == start:
            first -= 1
        types = self.symbols.types
        best = next((at for at in range(first, place + 1) if types[at] in _TEXT), first)
        return self.symbols.names[best], start

    def _locate(self, address: int) -> tuple[str, int] | None:
        found = self.range_at(address)
        return (found.name, found.start) if found is not None else self._symbol(address)

    def function(self, address: int) -> str:
        """Name of the function at an address; the number itself where there is none."""
        name = self._known.get(address)
        if name is None:
            found = self._locate(address)
            name = self._known[address] = found[0] if found else f"{address:#x}"
        return name

    def describe(self, address: int) -> str:
        """Name and offset, as ``name+0x12``."""
        found = self._locate(address)
        if found is None:
            return f"{address:#x}"
        return found[0] if address == found[1] else f"{found[0]}+{address - found[1]:#x}"

    def span(self, address: int) -> tuple[int, int]:
        """First address of the function at an address, and the first after it."""
        found = self.range_at(address)
        if found is not None:
            return found.start, found.end
        symbol = self._symbol(address)
        start = symbol[1] if symbol else address
        addresses = self.symbols.addresses
        place = bisect_right(addresses, address)
        return start, addresses[place] if place < len(addresses) else address + 1
