"""Text of thousands of functions from few bodies: each body is assembled once and copied to many addresses."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol, runtime_checkable

from asm import Image
from asm.encodings import INT3
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import ALIGNMENT, AssemblyFunctions, FunctionText, PlacedFunction, padding_bytes


@runtime_checkable
class TextSource(Protocol):
    """Functions that are laid out all at once."""

    def stamp(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> "StampedText":
        """Lay the functions out from ``start`` on; ``symbols`` are the existing external ones."""
        ...


@dataclass(frozen=True, slots=True)
class StampedFunctions:
    """Traceable functions by name, each with the number of its body in ``bodies`` and its BTF id (0: none).

    A body is assembly text that runs at any address and names no symbol. Functions may share a name.
    """

    names: Sequence[str]
    shapes: Sequence[int]
    bodies: Sequence[str]
    btf_ids: Sequence[int] = ()

    def stamp(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> "StampedText":
        """Lay them out in sequence, as ``AssemblyFunctions`` would, with int3 between them.

        Raises asm.AsmError for a body that can't be assembled.
        """
        templates = tuple(_assemble(body, entry) for body in self.bodies)
        padding = padding_bytes(entry.padding)
        stamps = []
        for template in templates:
            size = entry.padding + len(template)
            stamps.append(padding + template.code + INT3 * (-size % ALIGNMENT))
        first = (start + entry.padding + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        steps = [len(stamp) for stamp in stamps]
        addresses = array("Q", accumulate((steps[shape] for shape in self.shapes), initial=first))
        end = addresses.pop() - entry.padding
        return StampedText(
            first - entry.padding,
            end,
            b"".join([stamps[shape] for shape in self.shapes]),
            self.names,
            addresses,
            array("H", self.shapes),
            array("I", self.btf_ids or bytes(4 * len(self.names))),
            templates,
            entry.site_offset,
        )


def _assemble(body: str, entry: EntryLayout) -> Image:
    (placed,) = AssemblyFunctions((FunctionText("", body),)).place(0, entry, {})
    return placed.image


@dataclass(frozen=True, eq=False)
class StampedText:
    """A range of text, ``start`` to ``end``, and its functions by rising address. Images are built on request."""

    start: int
    end: int
    code: bytes
    names: Sequence[str]
    addresses: Sequence[int]
    shapes: Sequence[int]
    btf_ids: Sequence[int]
    templates: tuple[Image, ...]
    site_offset: int

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[PlacedFunction]:
        return (self.function(position) for position in range(len(self)))

    @property
    def sites(self) -> Iterator[int]:
        """The patch sites, by rising address."""
        offset = self.site_offset
        return (address + offset for address in self.addresses)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Size of each function in bytes, without padding."""
        sizes = [len(template) for template in self.templates]
        return array("H", [sizes[shape] for shape in self.shapes])

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of the first function of each name."""
        return dict(zip(reversed(self.names), range(len(self) - 1, -1, -1), strict=True))

    def position_at(self, address: int) -> int | None:
        """The position of the function that covers an address."""
        position = bisect_right(self.addresses, address) - 1
        if position < 0 or address >= self.addresses[position] + len(self.templates[self.shapes[position]]):
            return None
        return position

    def function(self, position: int) -> PlacedFunction:
        """The function at a position."""
        address = self.addresses[position]
        image = self._image(position)
        site = address + self.site_offset
        return PlacedFunction(image.name, address, len(image), site, "", image, btf_id=self.btf_ids[position])

    def image_at(self, address: int) -> Image | None:
        """The image of the function that covers an address, or None."""
        position = self.position_at(address)
        return None if position is None else self._image(position)

    def _image(self, position: int) -> Image:
        image = self._images.get(position)
        if image is None:
            template = self.templates[self.shapes[position]]
            image = Image(self.addresses[position], template.code, {}, template.lines, self.names[position])
            self._images[position] = image
        return image

    @cached_property
    def _images(self) -> dict[int, Image]:
        return {}


class FunctionTable(MutableMapping[str, PlacedFunction]):
    """A kernel's functions by name (``module:name`` for a module's), including those of stamped text.

    Entries that were set take precedence over stamped functions of that name; of these the first by address is used.
    """

    def __init__(self) -> None:
        self._single: dict[str, PlacedFunction] = {}
        self.texts: list[StampedText] = []
        """Stamped text, oldest first."""

    def __getitem__(self, name: str) -> PlacedFunction:
        found = self._single.get(name)
        if found is not None:
            return found
        for text in self.texts:
            position = text.positions.get(name)
            if position is not None:
                return text.function(position)
        raise KeyError(name)

    def __setitem__(self, name: str, function: PlacedFunction) -> None:
        self._single[name] = function

    def __delitem__(self, name: str) -> None:
        del self._single[name]

    def __contains__(self, name: object) -> bool:
        return name in self._single or any(name in text.positions for text in self.texts)

    def __iter__(self) -> Iterator[str]:
        yield from self._single
        seen = set(self._single)
        for text in self.texts:
            for name in text.positions:
                if name not in seen:
                    seen.add(name)
                    yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def single(self) -> Mapping[str, PlacedFunction]:
        """Functions that were placed one by one."""
        return self._single

    def stamped_at(self, address: int) -> PlacedFunction | None:
        """The stamped function that covers an address, or None."""
        for text in self.texts:
            if text.start <= address < text.end:
                position = text.position_at(address)
                return None if position is None else text.function(position)
        return None
