"""A counted path: instructions, phases, and the code that was executed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from trampoline.bpf.errors import TrampolineError

DIGEST = 8
"""Number of hexadecimal digits in a code digest."""


@dataclass(frozen=True)
class PathPiece:
    """Code that a path executed of one image or function in one phase: its instructions in address order.

    A line is an instruction, prefixed by ``3x`` if it was executed three times.
    """

    name: str
    lines: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """Digest of the code."""
        return sha256("\n".join((self.name, *self.lines)).encode()).hexdigest()[:DIGEST]


@dataclass(frozen=True, slots=True)
class PhaseCode:
    """One phase of a path: instruction count and code."""

    instructions: int
    pieces: tuple[PathPiece, ...]


@dataclass(frozen=True, slots=True)
class CountedPath:
    """Counts of one path. ``conditions``: the kernel and the design that it was counted on, by name."""

    instructions: int
    unbalanced_returns: int
    phases: Mapping[str, PhaseCode]
    conditions: Mapping[str, str] = field(default_factory=dict)


def check_name(name: str) -> str:
    """Check that a name fits before ``= N`` on a line. Raises TrampolineError."""
    if not name or name != name.strip() or name.startswith("#") or not name.isprintable():
        raise TrampolineError(
            f"{name!r} cannot name a count: it must be one printable line, without blanks around it and # in front"
        )
    return name
