"""Lines of styled text: what every pane is made of, and what ``--plain`` prints without the styles.

A style is a word for what the text is, a ``Role``; how that looks is the screen's to say. Nothing is told by colour
alone: whatever a role means, the text has a character for it as well.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


class Role(enum.StrEnum):
    """What a piece of text is."""

    PLAIN = "plain"
    CURRENT = "current"
    """The instruction that is executed next."""
    CURSOR = "cursor"
    CHANGED = "changed"
    """Different from what was there before the last command."""
    FAINT = "faint"
    """Addresses, rules, what is there for orientation."""
    NAME = "name"
    COMMENT = "comment"
    SOURCE = "source"
    PHASE = "phase"
    BREAKPOINT = "breakpoint"
    WARNING = "warning"
    """Faults, text that is being patched."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text of one role."""

    text: str
    role: Role = Role.PLAIN


Line: TypeAlias = tuple[Span, ...]
"""A line of a pane."""

CUT = "\N{HORIZONTAL ELLIPSIS}"
"""Stands where a line was too long for its pane."""


def line(*parts: str | Span) -> Line:
    """A line of these pieces, empty ones left out; strings are plain."""
    spans = (part if isinstance(part, Span) else Span(part) for part in parts)
    return tuple(span for span in spans if span.text)


def plain(spans: Iterable[Span]) -> str:
    """The text of a line, without blanks at its end."""
    return "".join(span.text for span in spans).rstrip()


def width(spans: Iterable[Span]) -> int:
    """Columns that a line takes."""
    return sum(len(span.text) for span in spans)


def fitted(spans: Line, columns: int) -> Line:
    """The line in at most ``columns``; where something had to go, ``CUT`` is its last character."""
    if columns <= 0:
        return ()
    if len(plain(spans)) <= columns:
        return spans if width(spans) <= columns else _first(spans, columns)
    cut = _first(spans, columns - 1)
    return (*cut, Span(CUT, cut[-1].role if cut else Role.PLAIN))


def _first(spans: Line, columns: int) -> Line:
    found: list[Span] = []
    for span in spans:
        if columns <= 0:
            break
        found.append(Span(span.text[:columns], span.role))
        columns -= len(span.text)
    return tuple(found)


def restyled(spans: Line, role: Role) -> Line:
    """The same text, all of one role."""
    return tuple(Span(span.text, role) for span in spans)
