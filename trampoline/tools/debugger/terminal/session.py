"""State of one user's debugger between commands."""

from collections.abc import Callable

from trampoline.tools.debugger import BpfDebugger, Breakpoint
from trampoline.tools.debugger.terminal.schedule_cursor import Along
from trampoline.tools.debugger.terminal.view_model import Seen, ViewBaseline, look


class StepperSession:
    """A debugger in use, from one host thread at a time; only ``interrupt`` may be called from another."""

    def __init__(self, debugger: BpfDebugger, title: str, along: Along | None = None) -> None:
        self.debugger, self.title = debugger, title
        self.along = along
        """The schedule to follow."""
        if along is not None:
            along.choose()
        self.start = debugger.position
        """Position at which the user starts, with all threads placed; going back ends here."""
        self.marks: ViewBaseline | None = None
        """State that changes are measured against; None before the first command."""
        self.last = ""
        """The command that an empty line repeats."""
        self.after_instruction: Callable[[], None] | None = None
        """Called after each instruction of a forward step; used to print them all."""
        self._numbers: dict[Breakpoint, int] = {}

    def look(self) -> Seen:
        """A snapshot of the present state."""
        return look(self.debugger, self.title, self.marks, self.number, self.along)

    def mark(self) -> None:
        """Measure changes from here on."""
        self.marks = ViewBaseline.of(self.debugger)

    def number(self, breakpoint: Breakpoint) -> int:
        """Number of a breakpoint, from 1; numbers are not reused."""
        return self._numbers.setdefault(breakpoint, len(self._numbers) + 1)

    def interrupt(self) -> None:
        """Stop a running command; may be called from any host thread."""
        self.debugger.interrupt()
