"""Widgets above the panes: a page of text, and the command line's input."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from trampoline.tools.debugger.terminal.panes import PaneRow, PaneText
from trampoline.tools.debugger.terminal.styled_text import Line
from trampoline.tools.debugger.terminal.widgets import Pane


class Page(ModalScreen[None]):
    """Text that covers the screen until the user closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss", show=False) for key in ("q", "escape", "enter", "space", "f1", "question_mark")
    ]

    def __init__(self, title: str, lines: tuple[Line, ...]) -> None:
        super().__init__()
        self._text = PaneText(title, tuple(PaneRow(spans) for spans in lines))

    def compose(self) -> ComposeResult:
        """One pane."""
        yield Pane(id="page", number=0)

    def on_mount(self) -> None:
        """Show the text."""
        page = self.query_one(Pane)
        page.show(self._text)
        page.focus()


class CommandLine(Input):
    """The command line; up and down move through its history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier(-1)", show=False),
        Binding("down", "earlier(1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="prompt", select_on_focus=False)
        self.cursor_blink = False
        self._typed: list[str] = []
        self._at = 0

    def begin(self, text: str) -> None:
        """Open the input with this text."""
        self._at = len(self._typed)
        self.value = text
        self.cursor_position = len(text)

    def remember(self, text: str) -> None:
        """Add a command to the history."""
        if text.strip() and self._typed[-1:] != [text]:
            self._typed.append(text)

    def action_earlier(self, steps: int) -> None:
        """Show an older command, or a newer one."""
        self._at = min(max(self._at + steps, 0), len(self._typed))
        self.value = (*self._typed, "")[self._at]
        self.cursor_position = len(self.value)
