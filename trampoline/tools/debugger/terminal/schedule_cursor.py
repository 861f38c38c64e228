"""Cursor along a schedule of ``tramp explore``: the next actor, and whether the user still follows the schedule."""

from trampoline.tools.debugger import DebugStop, DebugStopReason, Thread
from trampoline.tools.debugger.schedule import ScheduleDebugger


class Along:
    """A schedule that the user follows, or followed until a step departed from it."""

    def __init__(self, debugger: ScheduleDebugger) -> None:
        self.debugger = debugger
        self._end = debugger.end
        self.is_left = False
        """True once a step has departed from the schedule."""

    def note(self) -> None:
        """Update the cursor after a command: a new recorded position means that the schedule was left."""
        if self.debugger.end != self._end:
            self.is_left = True

    @property
    def present(self) -> int | None:
        """Index of the step that makes the next move, from 0; None after the last, or off the schedule."""
        return None if self.is_left else self.debugger.present

    def choose(self) -> None:
        """Select the thread that the schedule runs next."""
        present = self.present
        if present is None:
            return
        name = self.debugger.schedule[present].name
        found = [thread for thread in self.debugger.threads if thread.name == name]
        if found:
            self.debugger.select(found[0])

    def step(self, count: int) -> DebugStop:
        """Make ``count`` moves along the schedule."""
        debugger = self.debugger
        if self.present is None:
            return self._over()
        debugger.goto(min(debugger.position + count, self._end))
        return debugger.stopped(DebugStopReason.STEP) if self.present is not None else self._over()

    def is_next(self, thread: Thread) -> bool:
        """True if the schedule runs this thread next."""
        present = self.present
        return present is not None and self.debugger.schedule[present].name == thread.name

    def _over(self) -> DebugStop:
        debugger = self.debugger
        fault = debugger.ended is DebugStopReason.FAULT
        return debugger.stopped(DebugStopReason.FAULT if fault else DebugStopReason.DONE, debugger.failure or OVER)


OVER = "the schedule is over"
