"""Widgets of the screen, which repaint only lines that changed."""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from trampoline.tools.debugger.terminal.panes import PaneRow, PaneText
from trampoline.tools.debugger.terminal.screen_style import STYLES
from trampoline.tools.debugger.terminal.styled_text import CUT, Line, Span, fitted, plain, width

SIDEWAYS = 8
"""Columns by which an arrow key moves a pane's text."""


class TextLine(Widget):
    """One line."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.spans: Line = ()

    def show(self, spans: Line) -> None:
        """Replace the line."""
        if spans != self.spans:
            self.spans = spans
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line as Textual paints it."""
        return strip(self.spans if y == 0 else (), self.size.width, self.rich_style)


class Pane(Widget, can_focus=True):
    """A title over lines that can be scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
        Binding("home", "scroll(-100000)", show=False),
        Binding("end", "scroll(100000)", show=False),
        Binding("left", "sideways(-1)", show=False),
        Binding("right", "sideways(1)", show=False),
    ]

    def __init__(self, *, id: str, number: int) -> None:
        super().__init__(id=id)
        self.number = number
        self.text = PaneText("", ())
        self.top = 0
        """Index of the first visible row."""
        self.left = 0

    def show(self, text: PaneText) -> None:
        """Replace the lines, and scroll to the row that must be visible."""
        before = self._visible()
        known = self.text.rows[self.top].address if self.top < len(self.text.rows) else None
        self.text = text
        if known is not None:
            self.top = next((place for place, row in enumerate(text.rows) if row.address == known), self.top)
        if text.at is not None:
            self._bring(text.at)
        self.top = self._within(self.top)
        self._repaint(before)

    def action_scroll(self, lines: int) -> None:
        """Move the text up or down."""
        before = self._visible()
        self.top = self._within(self.top + lines)
        self._repaint(before)

    def action_sideways(self, steps: int) -> None:
        """Move the text left or right."""
        longest = max((width(row.spans) for row in self.text.rows), default=0)
        left = min(max(self.left + SIDEWAYS * steps, 0), max(longest - self.size.width, 0))
        if left != self.left:
            self.left = left
            self.refresh()

    def on_resize(self) -> None:
        """Scroll to the row that must be visible."""
        if self.text.at is not None:
            self._bring(self.text.at)
        self.top = self._within(self.top)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line as Textual paints it."""
        place = self.top + y
        spans = self.text.rows[place].spans if place < len(self.text.rows) else ()
        return strip(spans, self.size.width, self.rich_style, self.left)

    def _bring(self, place: int) -> None:
        height = max(self.size.height, 1)
        margin = min(2, (height - 1) // 2)
        if not self.top + margin <= place <= self.top + height - 1 - margin:
            self.top = place - height // 3

    def _within(self, top: int) -> int:
        return max(min(top, len(self.text.rows) - max(self.size.height, 1)), 0)

    def _visible(self) -> list[PaneRow | None]:
        rows = self.text.rows
        return [rows[place] if place < len(rows) else None for place in range(self.top, self.top + self.size.height)]

    def _repaint(self, before: list[PaneRow | None]) -> None:
        title = f" {self.number} {self.text.title} " if self.number else f" {self.text.title} "
        if self.border_title != title:
            self.border_title = title
        for y, (old, new) in enumerate(zip(before, self._visible(), strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))


class CodePane(Pane):
    """The code pane; its keys move the cursor, and the text with it."""

    def action_scroll(self, lines: int) -> None:
        """Move the cursor."""
        self.post_message(self.CursorMoved(lines))

    class CursorMoved(Message):
        """Request to move the cursor by so many instructions."""

        def __init__(self, lines: int) -> None:
            super().__init__()
            self.lines = lines


def strip(spans: Line, columns: int, base: Style, left: int = 0) -> Strip:
    """A line as a Textual strip, from column ``left`` on."""
    if left:
        spans = _without(spans, left)
    spans = fitted(spans, columns)
    segments = [Segment(span.text, base + STYLES[span.role]) for span in spans]
    return Strip(segments).adjust_cell_length(columns, base)


def _without(spans: Line, columns: int) -> Line:
    if columns >= len(plain(spans)):
        return (Span(CUT),) if plain(spans) else ()
    found: list[Span] = []
    for span in spans:
        found.append(Span(span.text[columns:], span.role))
        columns = max(columns - len(span.text), 0)
    return tuple(found)
