"""End of a move, or of a run of moves."""

import enum
from typing import TYPE_CHECKING, NamedTuple

from emu.events import Event

if TYPE_CHECKING:
    from emu.debug.breakpoints import Breakpoint
    from emu.threads.thread import Thread


class DebugStopReason(enum.StrEnum):
    """Reason of a stop."""

    STEP = "step"
    """The requested steps were made."""
    BREAKPOINT = "breakpoint"
    EVENT = "event"
    """A breakpoint on an event, or the event of ``run_to``."""
    DONE = "done"
    """The thread has ended."""
    FAULT = "fault"
    """The next instruction, or point, faults: the state is the one before it."""
    BLOCKED = "blocked"
    """The thread waits for something."""
    START = "start"
    """The start of the timeline was reached."""
    INTERRUPTED = "interrupted"
    LIMIT = "limit"
    """The limit on moves was reached."""


class DebugStop(NamedTuple):
    """State at a stop. ``event`` is the last one that happened on the way, if any did."""

    reason: DebugStopReason
    thread: "Thread | None"
    position: int
    breakpoint: "Breakpoint | None" = None
    event: Event | None = None
    message: str = ""
