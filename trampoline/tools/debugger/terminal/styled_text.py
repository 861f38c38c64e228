"""Lines of styled text, which make up the panes; ``--plain`` prints them without styles.

A style is a ``Role``, the kind of the text; the screen defines its colours. Each role also has a character in the text,
so that no information depends on colour.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


class Role(enum.StrEnum):
    """Kind of a piece of text."""

    PLAIN = "plain"
    CURRENT = "current"
    """The instruction that is executed next."""
    CURSOR = "cursor"
    CHANGED = "changed"
    """Different from what was there before the last command."""
    FAINT = "faint"
    """Addresses, rules and other orientation marks."""
    NAME = "name"
    COMMENT = "comment"
    SOURCE = "source"
    PHASE = "phase"
    BREAKPOINT = "breakpoint"
    WARNING = "warning"
    """Faults, and text that is being patched."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text of one role."""

    text: str
    role: Role = Role.PLAIN


Line: TypeAlias = tuple[Span, ...]
"""A line of a pane."""

CUT = "\N{HORIZONTAL ELLIPSIS}"
"""Last character of a line that was cut to its pane's width."""


def line(*parts: str | Span) -> Line:
    """A line of these pieces without the empty ones; strings get the plain role."""
    spans = (part if isinstance(part, Span) else Span(part) for part in parts)
    return tuple(span for span in spans if span.text)


def plain(spans: Iterable[Span]) -> str:
    """The text of a line, without trailing blanks."""
    return "".join(span.text for span in spans).rstrip()


def width(spans: Iterable[Span]) -> int:
    """Width of a line in columns."""
    return sum(len(span.text) for span in spans)


def fitted(spans: Line, columns: int) -> Line:
    """The line in at most ``columns``; a line that was cut ends in ``CUT``."""
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
    """The same text, all in one role."""
    return tuple(Span(span.text, role) for span in spans)
