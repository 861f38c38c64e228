"""A path as it was counted: instructions, phases, and the code that was executed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from trampoline.bpf.errors import TrampolineError

DIGEST = 8
"""Hexadecimal digits that name a piece of code."""


@dataclass(frozen=True)
class PathPiece:
    """What a path executed of one image or function in one phase: its instructions in order of their addresses.

    A line is an instruction, with ``3x`` in front where it was executed three times.
    """

    name: str
    lines: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """A name of this very code."""
        return sha256("\n".join((self.name, *self.lines)).encode()).hexdigest()[:DIGEST]


@dataclass(frozen=True, slots=True)
class PhaseCode:
    """One phase of a path: how many instructions, and which."""

    instructions: int
    pieces: tuple[PathPiece, ...]


@dataclass(frozen=True, slots=True)
class CountedPath:
    """What one path took. ``conditions``: the kernel and the design that it was counted on, by name."""

    instructions: int
    unbalanced_returns: int
    phases: Mapping[str, PhaseCode]
    conditions: Mapping[str, str] = field(default_factory=dict)


def check_name(name: str) -> str:
    """A name that can stand in front of ``= N`` on a line of its own; TrampolineError for any other."""
    if not name or name != name.strip() or name.startswith("#") or not name.isprintable():
        raise TrampolineError(
            f"{name!r} can't name a count: it must be one printable line, without blanks around it and # in front"
        )
    return name
