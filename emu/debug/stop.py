"""How a move, or a run of moves, ended."""

import enum
from typing import TYPE_CHECKING, NamedTuple

from emu.events import Event

if TYPE_CHECKING:
    from emu.debug.breakpoints import Breakpoint
    from emu.threads.thread import Thread


class DebugStopReason(enum.StrEnum):
    """Why nothing goes on."""

    STEP = "step"
    """What was asked for was done."""
    BREAKPOINT = "breakpoint"
    EVENT = "event"
    """A breakpoint on an event, or the event that ``run_to`` was asked for."""
    DONE = "done"
    """The thread has ended."""
    FAULT = "fault"
    """The next instruction, or point, faults: everything is as it was before it."""
    BLOCKED = "blocked"
    """The thread waits for something."""
    START = "start"
    """There is nothing further back."""
    INTERRUPTED = "interrupted"
    LIMIT = "limit"
    """So many moves as were allowed were made."""


class DebugStop(NamedTuple):
    """Where everything stands. ``event`` is the last one that happened on the way to a stop, if any did."""

    reason: DebugStopReason
    thread: "Thread | None"
    position: int
    breakpoint: "Breakpoint | None" = None
    event: Event | None = None
    message: str = ""
