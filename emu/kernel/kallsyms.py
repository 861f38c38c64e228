"""Kernel symbols: names to addresses and back."""

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from emu.kernel.errors import KernelError


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A name for ``size`` bytes at ``address``; ``module`` is empty for the kernel itself."""

    address: int
    name: str
    size: int
    module: str = ""


class Kallsyms:
    """All symbols, sorted by address. A name may stand for several (statics, modules)."""

    def __init__(self) -> None:
        self._sorted: list[Symbol] = []
        self._by_name: dict[str, list[Symbol]] = {}

    def add(self, name: str, address: int, size: int, module: str = "") -> Symbol:
        """Add a symbol."""
        symbol = Symbol(address, name, size, module)
        insort(self._sorted, symbol)
        self._by_name.setdefault(name, []).append(symbol)
        return symbol

    def remove(self, symbol: Symbol) -> None:
        """Take a symbol out."""
        self._sorted.remove(symbol)
        self._by_name[symbol.name].remove(symbol)
        if not self._by_name[symbol.name]:
            del self._by_name[symbol.name]

    def lookup(self, name: str) -> Symbol:
        """The symbol ``name`` or ``module:name``. Unqualified, the kernel's own comes first (B13 of the facts:
        31bf1dbccfb0).
        """
        module, _, bare = name.rpartition(":")
        found = [s for s in self._by_name.get(bare, ()) if not module or s.module == module]
        if not found:
            raise KernelError(2, f"no symbol {name!r}")
        return min(found, key=lambda symbol: symbol.module != "")

    def address(self, name: str) -> int:
        """The guest address of a symbol; KernelError (-ENOENT) where there is none."""
        return self.lookup(name).address

    def at(self, address: int) -> Symbol | None:
        """The symbol that an address lies in."""
        position = bisect_right(self._sorted, address, key=lambda symbol: symbol.address)
        while position:
            symbol = self._sorted[position - 1]
            if address < symbol.address + max(symbol.size, 1):
                return symbol
            if symbol.size:
                return None
            position -= 1
        return None

    def function_name(self, address: int) -> str | None:
        """The name of the symbol that an address lies in."""
        symbol = self.at(address)
        return symbol.name if symbol else None

    def name(self, address: int) -> str | None:
        """``name+0x10`` for an address inside a symbol."""
        symbol = self.at(address)
        if symbol is None:
            return None
        offset = address - symbol.address
        return symbol.name + (f"+{offset:#x}" if offset else "")

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)
