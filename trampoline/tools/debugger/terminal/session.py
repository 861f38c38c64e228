"""One user at one debugger: what is remembered between commands."""

from collections.abc import Callable

from trampoline.tools.debugger import BpfDebugger, Breakpoint
from trampoline.tools.debugger.terminal.schedule_cursor import Along
from trampoline.tools.debugger.terminal.view_model import Seen, ViewBaseline, look


class StepperSession:
    """A debugger in use. Nothing here is asked from two threads of the host at once, but ``interrupt``."""

    def __init__(self, debugger: BpfDebugger, title: str, along: Along | None = None) -> None:
        self.debugger, self.title = debugger, title
        self.along = along
        """The schedule that is to be followed."""
        if along is not None:
            along.choose()
        self.start = debugger.position
        """Where the user begins, with the threads in place: going back ends here."""
        self.marks: ViewBaseline | None = None
        """What changes are measured by; None before the first command."""
        self.last = ""
        """The command that an empty line repeats."""
        self.after_instruction: Callable[[], None] | None = None
        """Called after each instruction of a step forwards, where somebody prints them all."""
        self._numbers: dict[Breakpoint, int] = {}

    def look(self) -> Seen:
        """What there is to see now."""
        return look(self.debugger, self.title, self.marks, self.number, self.along)

    def mark(self) -> None:
        """Measure changes from here on."""
        self.marks = ViewBaseline.of(self.debugger)

    def number(self, breakpoint: Breakpoint) -> int:
        """The number by which the user knows a breakpoint: the first has 1, and none is given twice."""
        return self._numbers.setdefault(breakpoint, len(self._numbers) + 1)

    def interrupt(self) -> None:
        """Stop what runs; from any thread of the host."""
        self.debugger.interrupt()
