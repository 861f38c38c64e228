"""An `Image`: machine code as a value, with its address, labels and one `Line` an instruction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction or data directive: `size` bytes at `offset` of its image.

    `text` is the canonical disassembly, with symbol names where the source used them; `[rip + X]` names the address X.
    `phase` is the word of the last `.phase` directive before it, None without one.
    """

    offset: int
    size: int
    text: str
    comment: str
    phase: str | None


@dataclass(frozen=True)
class Image:
    """Machine code placed at the guest address `address`; `symbols` are its own labels (name to guest address)."""

    address: int
    code: bytes
    symbols: Mapping[str, int] = field(hash=False)
    lines: Sequence[Line] = field(hash=False)
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", MappingProxyType(dict(self.symbols)))

    @property
    def end(self) -> int:
        """The guest address after the last byte."""
        return self.address + len(self.code)

    def __len__(self) -> int:
        """The size in bytes."""
        return len(self.code)

    def __bool__(self) -> bool:
        """An image is one, even when it is empty."""
        return True

    @cached_property
    def _offsets(self) -> list[int]:
        return [line.offset for line in self.lines]

    def line_at(self, address: int) -> Line | None:
        """The line whose bytes hold the guest address, also when that is not its first byte."""
        offset = address - self.address
        index = bisect_right(self._offsets, offset) - 1
        if index < 0:
            return None
        line = self.lines[index]
        return line if offset < line.offset + line.size else None

    def code_of(self, line: Line) -> bytes:
        """The bytes of a line of this image."""
        return self.code[line.offset : line.offset + line.size]

    def listing(
        self,
        *,
        color: bool = False,
        names: Mapping[int, str] | None = None,
        phase_colors: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """The image as text: offset, bytes, phase, instruction, comment; `names` gives addresses their symbols,
        `phase_colors` the phases their escape sequences where the listing is coloured.
        """
        from asm.listing import render

        return render(self, color=color, names=names or {}, phase_colors=phase_colors)

    def to_json(self) -> dict[str, Any]:
        """The image as JSON types; addresses are hexadecimal strings, offsets and sizes are bytes."""
        return {
            "name": self.name,
            "address": f"{self.address:#x}",
            "size": len(self.code),
            "code": self.code.hex(),
            "symbols": {name: f"{address:#x}" for name, address in self.symbols.items()},
            "lines": [
                {
                    "offset": line.offset,
                    "size": line.size,
                    "code": self.code_of(line).hex(),
                    "text": line.text,
                    "comment": line.comment,
                    "phase": line.phase,
                }
                for line in self.lines
            ],
        }
