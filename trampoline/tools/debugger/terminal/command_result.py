"""Result of a command."""

from dataclasses import dataclass

from trampoline.tools.debugger.terminal.styled_text import Line


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Text to show, and flags for the changes that a command made."""

    lines: tuple[Line, ...] = ()
    is_error: bool = False
    moved: bool = False
    leaves: bool = False
    """True if the user quits."""
