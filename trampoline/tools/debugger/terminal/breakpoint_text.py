"""Short descriptions of breakpoints."""

from trampoline.tools.debugger import AtAddress, AtEvent, AtPhase, Breakpoint, DataAccess, When
from trampoline.tools.debugger.debugger import AtProgram

ACCESS = {"r": "read of", "w": "write to", "rw": "access to"}


def breakpoint_text(breakpoint: Breakpoint) -> str:
    """One-line description of a breakpoint: its place and condition."""
    match breakpoint:
        case AtAddress(where, condition):
            place = where if isinstance(where, str) else f"{where:#x}"
            return f"{place} if {condition}" if condition is not None else place
        case AtPhase(phase):
            return f"phase {phase}"
        case AtProgram(name):
            return f"program {name}" if name else "any program"
        case AtEvent(kind):
            return f"event {kind}" if kind else "any event"
        case DataAccess(start, size, how):
            return f"{ACCESS[how]} {size} bytes at {start:#x}"
        case When(_, text):
            return f"when {text}" if text else "a condition"
        case _:
            return type(breakpoint).__name__
