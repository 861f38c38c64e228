"""Breakpoints for the goals of ``Debugger.run_to``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.debug.breakpoints import AtPhase, Breakpoint
from emu.debug.calls import is_call

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger


@dataclass(frozen=True)
class NextPhase(Breakpoint):
    """Before an instruction of another phase than the one at the start of the run."""

    def addresses(self, debugger: "Debugger") -> None:
        pass

    def begin(self, debugger: "Debugger") -> None:
        debugger.notes[self] = debugger.phase()

    def met(self, debugger: "Debugger") -> bool:
        phase = debugger.phase()
        return phase is not None and phase != debugger.notes[self]


@dataclass(frozen=True)
class NextCall(Breakpoint):
    """Before a call instruction."""

    def addresses(self, debugger: "Debugger") -> None:
        pass

    def met(self, debugger: "Debugger") -> bool:
        return is_call(debugger.code_line(debugger.rip).code)


GOALS: dict[str, Callable[[], Breakpoint]] = {
    "phase": NextPhase,
    "program": lambda: AtPhase("program"),
    "call": NextCall,
}
