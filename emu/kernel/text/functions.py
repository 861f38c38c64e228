"""Sources of a kernel's functions, and their layout as text.

The kernel builds from ``FunctionSource``; the synthetic functions, the user's assembly and compiled objects implement
it, and no other code depends on the origin of the text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from asm import Image, assemble
from asm.encodings import NOPS
from emu.kernel.text.entry import EntryLayout

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class FunctionText:
    """A function as assembly text, without its entry (endbr64 and patch site come from the flavour).

    ``prototype`` is its C declaration, its BTF. ``sealed``: its address is never taken, so that the kernel overwrote
    its endbr64. ``endbr`` is False if the compiler made none (a static whose address is never taken): then the site is
    at +0. ``address``: its required guest address, or None for the next free one.
    """

    name: str
    body: str
    prototype: str = ""
    traceable: bool = True
    sealed: bool = False
    endbr: bool = True
    address: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedFunction:
    """A function in guest memory; ``site`` is the address of its patch site, or None.

    ``btf_id`` is its type id in the kernel's BTF, 0 if it is not known.
    """

    name: str
    address: int
    size: int
    site: int | None
    prototype: str
    image: Image
    module: str = ""
    btf_id: int = 0


class FunctionSource(Protocol):
    """Functions to be placed into a text section."""

    def place(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> list[PlacedFunction]:
        """Lay the functions out from ``start`` on; ``symbols`` are the existing external ones."""
        ...


@dataclass(frozen=True, slots=True)
class AssemblyFunctions:
    """Functions as assembly text; they may call each other and every symbol of the kernel."""

    functions: tuple[FunctionText, ...]
    module: str = ""
    constants: Mapping[str, int] = field(default_factory=dict)

    def place(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> list[PlacedFunction]:
        """Lay them out in sequence, 16-byte aligned, with the flavour's padding before traceable ones.

        Raises asm.AsmError for a body that can't be assembled.
        """
        constants = dict(self.constants)
        # Sizes do not depend on a callee's address (calls and jumps out of an image take rel32), so one guess is
        # enough.
        guess = constants | {function.name: start for function in self.functions}
        placed = self._lay_out(start, entry, _Overlay(guess, symbols))
        known = constants | {function.name: function.address for function in placed}
        return self._lay_out(start, entry, _Overlay(known, symbols))

    def _lay_out(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> list[PlacedFunction]:
        placed: list[PlacedFunction] = []
        at = start
        for function in self.functions:
            address = function.address
            if address is None:
                at += entry.padding if function.traceable else 0
                address = at = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            image = self._assemble(function, address, entry, symbols)
            offset = entry.site_offset if function.endbr else 0
            site = address + offset if function.traceable else None
            placed.append(
                PlacedFunction(function.name, address, len(image), site, function.prototype, image, self.module)
            )
            if function.address is None:
                at += len(image)
        return placed

    @staticmethod
    def _assemble(function: FunctionText, address: int, entry: EntryLayout, symbols: Mapping[str, int]) -> Image:
        head = ""
        if function.traceable:
            if entry.endbr and function.endbr:
                head = f".byte {', '.join(map(hex, entry.sealed))}\n" if function.sealed else "endbr64\n"
            head += "nop5 ; patch site\n"
        return assemble(head + function.body, address, symbols, name=function.name)


class _Overlay(Mapping[str, int]):
    """A few names in front of a large mapping, which is not copied."""

    def __init__(self, front: dict[str, int], back: Mapping[str, int]) -> None:
        self._front, self._back = front, back

    def __getitem__(self, name: str) -> int:
        found = self._front.get(name)
        return self._back[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter({**self._back, **self._front})

    def __len__(self) -> int:
        return len({**self._back, **self._front})


def padding_bytes(size: int) -> bytes:
    """Padding before a traceable function (CONFIG_CALL_PADDING): one-byte nops."""
    return NOPS[1] * size


def symbols_of(functions: Iterable[PlacedFunction]) -> dict[str, int]:
    """Addresses of functions by name."""
    return {function.name: function.address for function in functions}
