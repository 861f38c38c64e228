"""What a run to the next of something stops at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.debug.breakpoints import AtPhase, Breakpoint
from emu.debug.calls import is_call

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger


@dataclass(frozen=True)
class NextPhase(Breakpoint):
    """Before an instruction of another phase than the one where the run began."""

    def addresses(self, debugger: "Debugger") -> None:
        """See Breakpoint."""

    def begin(self, debugger: "Debugger") -> None:
        """See Breakpoint."""
        debugger.notes[self] = debugger.phase()

    def met(self, debugger: "Debugger") -> bool:
        """See Breakpoint."""
        phase = debugger.phase()
        return phase is not None and phase != debugger.notes[self]


@dataclass(frozen=True)
class NextCall(Breakpoint):
    """Before a call instruction."""

    def addresses(self, debugger: "Debugger") -> None:
        """See Breakpoint."""

    def met(self, debugger: "Debugger") -> bool:
        """See Breakpoint."""
        return is_call(debugger.code_line(debugger.rip).code)


GOALS: dict[str, Callable[[], Breakpoint]] = {
    "phase": NextPhase,
    "program": lambda: AtPhase("program"),
    "call": NextCall,
}
