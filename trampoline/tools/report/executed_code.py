"""Executed code of a recording: each function and image whole, with execution counts of its instructions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from asm import Image
from emu.kernel.kernel import Kernel
from emu.recording import ExecutedInsn, Recording

_ADDRESS = re.compile(r"0x[0-9a-f]{8,}")


@dataclass(frozen=True, slots=True)
class CodeRow:
    """An instruction: its offset in its code in bytes, its text, and its execution count.

    ``label``: a symbol at this place, or ""; ``target``: symbols of the addresses in ``text``, or "".
    """

    offset: int
    code: bytes
    label: str
    text: str
    target: str
    comment: str
    phase: str | None
    count: int


@dataclass(frozen=True, slots=True)
class ExecutedCode:
    """A function or an image: ``size`` in bytes, ``executed`` instructions. A host call is shown as its ``ret``."""

    name: str
    address: int
    size: int
    rows: tuple[CodeRow, ...]

    @property
    def executed(self) -> int:
        """Number of instructions executed in it."""
        return sum(row.count for row in self.rows)

    @property
    def is_trampoline(self) -> bool:
        """True for code with several phases; callees have one."""
        return len({row.phase for row in self.rows if row.phase is not None}) > 1


def executed_code(kernel: Kernel, recording: Recording) -> Iterator[ExecutedCode]:
    """Executed functions and images in the order of their first execution. Images are read in their present state."""
    counts = recording.by_address
    seen: set[int | str] = set()
    for node in recording.root.walk():
        for address in node.counts:
            place = recording.places[address]
            key = place.function if place.image is None else place.image
            if key in seen:
                continue
            seen.add(key)
            image = kernel.machine.images.at(address)
            if place.image is None or image is None:
                places = [place for place in recording.places.values() if place.function == key]
                yield _of_places(kernel, str(key), sorted(places, key=lambda place: place.address), counts)
            else:
                yield _of_image(kernel, image, recording.places, counts)


def _of_image(kernel: Kernel, image: Image, places: dict[int, ExecutedInsn], counts: dict[int, int]) -> ExecutedCode:
    labels = {address: name for name, address in image.symbols.items()}
    rows = []
    for line in image.lines:
        address = image.address + line.offset
        code, text, comment = image.code_of(line), line.text, line.comment
        if (place := places.get(address)) is not None:
            code, text, comment = place.code, place.text, place.comment
        label = labels.get(address, "")
        phase = line.phase
        target = _targets(kernel, text, labels)
        rows.append(CodeRow(line.offset, code, label, text, target, comment, phase, counts.get(address, 0)))
    name = kernel.machine.function_at(image.address) or image.name
    return ExecutedCode(name, image.address, len(image), tuple(rows))


def _of_places(kernel: Kernel, name: str, places: list[ExecutedInsn], counts: dict[int, int]) -> ExecutedCode:
    start = places[0].address
    rows = tuple(
        CodeRow(
            place.address - start,
            place.code,
            "",
            place.text,
            _targets(kernel, place.text, {}),
            place.comment,
            place.phase,
            counts.get(place.address, 0),
        )
        for place in places
    )
    return ExecutedCode(name, start, places[-1].address + len(places[-1].code) - start, rows)


def _targets(kernel: Kernel, text: str, labels: dict[int, str]) -> str:
    """Symbols of the addresses in an instruction's text."""
    found = []
    for match in _ADDRESS.finditer(text):
        address = int(match[0], 16)
        name = labels.get(address)
        if name is None and (symbol := kernel.kallsyms.at(address)) is not None:
            name = symbol.name + (f"+{address - symbol.address:#x}" if address > symbol.address else "")
        if name:
            found.append(name)
    return ", ".join(found)
