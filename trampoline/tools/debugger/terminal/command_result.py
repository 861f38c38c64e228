"""What came of a command."""

from dataclasses import dataclass

from trampoline.tools.debugger.terminal.styled_text import Line


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Text to show, and whether anything moved or changed."""

    lines: tuple[Line, ...] = ()
    is_error: bool = False
    moved: bool = False
    leaves: bool = False
    """Whether the user wants to be gone."""
