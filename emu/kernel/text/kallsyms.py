"""Kernel symbols: names to addresses and back."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import ENOENT
from heapq import merge
from typing import Protocol, TypeVar, overload

from emu.kernel.errors import KernelError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A name for ``size`` bytes at ``address``; ``module`` is empty for the kernel itself."""

    address: int
    name: str
    size: int
    module: str = ""


class SymbolText(Protocol):
    """The kernel's own functions in a range of text, by rising address."""

    @property
    def start(self) -> int:
        """The first address."""
        ...

    @property
    def end(self) -> int:
        """The address after the last."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The name of each."""
        ...

    @property
    def addresses(self) -> Sequence[int]:
        """The address of each."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each."""
        ...

    @property
    def positions(self) -> Mapping[str, int]:
        """The position of the first one of each name."""
        ...

    def position_at(self, address: int) -> int | None:
        """The position of the one that covers an address."""
        ...


class Kallsyms:
    """All symbols, sorted by address. A name may have several (statics, modules)."""

    def __init__(self) -> None:
        self._sorted: list[Symbol] = []
        self._addresses: list[int] = []
        """Addresses of ``_sorted``."""
        self._by_name: dict[str, list[Symbol]] = {}
        self._texts: list[SymbolText] = []

    def add(self, name: str, address: int, size: int, module: str = "") -> Symbol:
        """Add a symbol."""
        symbol = Symbol(address, name, size, module)
        position = bisect_right(self._addresses, address)
        self._addresses.insert(position, address)
        self._sorted.insert(position, symbol)
        insort(self._by_name.setdefault(name, []), symbol)
        return symbol

    def add_text(self, text: SymbolText) -> None:
        """Add the symbols of a whole range of text, which must contain no other symbol."""
        self._texts.append(text)

    def remove(self, symbol: Symbol) -> None:
        """Remove a symbol returned by ``add``. ValueError if it does not exist."""
        position = self._sorted.index(symbol, bisect_left(self._addresses, symbol.address))
        del self._sorted[position], self._addresses[position]
        self._by_name[symbol.name].remove(symbol)
        if not self._by_name[symbol.name]:
            del self._by_name[symbol.name]

    def lookup(self, name: str) -> Symbol:
        """The symbol ``name`` or ``module:name``; the first by address if there are several. For an unqualified name
        the kernel's own comes first (31bf1dbccfb0). KernelError (-ENOENT).
        """
        module, _, bare = name.rpartition(":")
        found = self.find(bare, module)
        if found is None and not module:
            found = self.find(bare, None)
        if found is None:
            raise KernelError(ENOENT, f"no symbol {name!r}")
        return found

    def find(self, name: str, module: str | None = "") -> Symbol | None:
        """The first symbol of a name by address in a module, the kernel itself (""), or anywhere (None); None if there
        is none.
        """
        found = next((s for s in self._by_name.get(name, ()) if module is None or s.module == module), None)
        if not module:
            for text in self._texts:
                position = text.positions.get(name)
                if position is not None and (found is None or text.addresses[position] < found.address):
                    found = _symbol(text, position)
        return found

    def address(self, name: str) -> int:
        """The guest address of a symbol. KernelError (-ENOENT)."""
        return self.lookup(name).address

    def at(self, address: int) -> Symbol | None:
        """The symbol that contains an address."""
        for text in self._texts:
            if text.start <= address < text.end:
                inside = text.position_at(address)
                return None if inside is None else _symbol(text, inside)
        position = bisect_right(self._addresses, address)
        while position:
            symbol = self._sorted[position - 1]
            if address < symbol.address + max(symbol.size, 1):
                return symbol
            if symbol.size:
                return None
            position -= 1
        return None

    def function_name(self, address: int) -> str | None:
        """The name of the symbol that contains an address."""
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
        return name in self._by_name or any(name in text.positions for text in self._texts)

    def __iter__(self) -> Iterator[Symbol]:
        texts = ((_symbol(text, position) for position in range(len(text.names))) for text in self._texts)
        return merge(self._sorted, *texts, key=lambda symbol: symbol.address)

    def __len__(self) -> int:
        return len(self._sorted) + sum(len(text.names) for text in self._texts)


def _symbol(text: SymbolText, position: int) -> Symbol:
    return Symbol(text.addresses[position], text.names[position], text.sizes[position])


class AssemblySymbols(Mapping[str, int]):
    """Names for assembly text, current at each look-up: the kernel's own symbols, constants, modules' symbols."""

    def __init__(self, kallsyms: Kallsyms, constants: Mapping[str, int]) -> None:
        self._kallsyms, self._constants = kallsyms, constants

    def __or__(self, more: Mapping[str, int]) -> "AssemblySymbols":
        """A copy with more constants."""
        return AssemblySymbols(self._kallsyms, {**self._constants, **more})

    @overload
    def get(self, name: str, /) -> int | None: ...
    @overload
    def get(self, name: str, default: int | _T, /) -> int | _T: ...
    def get(self, name: str, default: object = None, /) -> object:
        """The address or value of a name."""
        symbol = self._kallsyms.find(name)
        if symbol is not None:
            return symbol.address
        constant = self._constants.get(name)
        if constant is not None:
            return constant
        symbol = self._kallsyms.find(name, None)
        return default if symbol is None else symbol.address

    def __getitem__(self, name: str) -> int:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._constants
        seen = set(self._constants)
        for symbol in self._kallsyms:
            if symbol.name not in seen:
                seen.add(symbol.name)
                yield symbol.name

    def __len__(self) -> int:
        return sum(1 for _ in self)
