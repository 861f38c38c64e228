"""Along a schedule of ``tramp explore``: who goes on at each position, and whether the user still follows it."""

from trampoline.tools.debugger import DebugStop, DebugStopReason, Thread
from trampoline.tools.debugger.schedule import ScheduleDebugger


class Along:
    """A schedule that is being followed, or was until the user let somebody else go on."""

    def __init__(self, debugger: ScheduleDebugger) -> None:
        self.debugger = debugger
        self._end = debugger.end
        self.is_left = False
        """Whether a step went another way: there is nothing to follow any more."""

    def note(self) -> None:
        """Take note of what a command did: moves of one's own put an end to those that were to come."""
        if self.debugger.end != self._end:
            self.is_left = True

    @property
    def present(self) -> int | None:
        """Which step of the schedule makes the next move, from 0; None behind its end, or off it."""
        return None if self.is_left else self.debugger.present

    def choose(self) -> None:
        """Make the thread the current one that the schedule lets go on."""
        present = self.present
        if present is None:
            return
        name = self.debugger.schedule[present].name
        found = [thread for thread in self.debugger.threads if thread.name == name]
        if found:
            self.debugger.select(found[0])

    def step(self, count: int) -> DebugStop:
        """So many moves of the schedule."""
        debugger = self.debugger
        if self.present is None:
            return self._over()
        debugger.goto(min(debugger.position + count, self._end))
        return debugger.stopped(DebugStopReason.STEP) if self.present is not None else self._over()

    def is_next(self, thread: Thread) -> bool:
        """Whether the schedule lets this thread go on."""
        present = self.present
        return present is not None and self.debugger.schedule[present].name == thread.name

    def _over(self) -> DebugStop:
        debugger = self.debugger
        fault = debugger.ended is DebugStopReason.FAULT
        return debugger.stopped(DebugStopReason.FAULT if fault else DebugStopReason.DONE, debugger.failure or OVER)


OVER = "the schedule is over"
