"""Moves of the debugger for gdb's resume packets, and their stop replies.

The debugger moves one thread at a time. A continue runs the thread that the user selected; if that has ended or waits,
the next one that can run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from emu.debug import Debugger
from emu.debug.breakpoints import AtAddress, Breakpoint, DataAccess
from emu.debug.stop import DebugStop, DebugStopReason
from emu.event_text import describe
from emu.gdb.errors import GdbError
from emu.gdb.symbol_file import process_context
from emu.threads.thread import OperationThread, TaskThread, Thread

NO_SIGNAL, SIGINT, SIGILL, SIGTRAP, SIGABRT, SIGSEGV = 0, 2, 4, 5, 6, 11
"""Signals as gdb numbers them (``enum gdb_signal``)."""
_FAULTS = {
    "page fault": SIGSEGV,
    "general protection": SIGSEGV,
    "invalid opcode": SIGILL,
    "unhandled int3": SIGTRAP,
}
_FAR = 1 << 60
_BEGIN, _END = "replaylog:begin;", "replaylog:end;"


@dataclass(frozen=True, slots=True)
class ResumeAction:
    """Action of a thread: ``c`` or ``s``, or, with a range, step until it leaves that. None: all threads."""

    kind: str
    thread: int | None = None
    range: tuple[int, int] | None = None


class Motion:
    """Moves a debugger for gdb. ``say``: prints in gdb; ``is_urgent``: True to stop at once."""

    def __init__(self, debugger: Debugger, say: Callable[[str], None], is_urgent: Callable[[], bool]) -> None:
        self._debugger, self._say, self._is_urgent = debugger, say, is_urgent
        self._process_context = process_context(debugger.kernel.machine)
        self.first = debugger.position
        """Start of time for gdb: the threads exist, and none has made a step."""
        self.goal: Callable[[], DebugStop] | None = None
        """Action of the next continue on each thread instead of running it."""
        self.destination: int | None = None
        """Position for the next continue, instead of running."""
        self.told = 0
        """Number of the thread of the last stop reply: gdb takes it as selected."""
        self.signs: dict[Breakpoint, str] = {}
        """Text of a stop reply for each kind of breakpoint."""

    # Forwards -------------------------------------------------------------------------------------------------------

    def resume(self, actions: Sequence[ResumeAction], looked_at: int) -> str:
        """Perform the actions, the first one that is for a thread; returns the stop reply. ``looked_at``: the thread
        that gdb shows. GdbError if no thread is meant.
        """
        stepping = next((one for one in actions if one.kind == "s" and one.thread is not None), None)
        if stepping is None and actions[0].kind == "s":
            stepping = actions[0]
        if stepping is not None:
            thread = self.thread(looked_at if stepping.thread is None else stepping.thread)
            return self._step(thread, stepping.range)
        wanted = {one.thread for one in actions}
        eligible = [one for one in self._debugger.threads if None in wanted or one.number in wanted]
        eligible.sort(key=lambda one: (one.number != looked_at, one.number))
        if not eligible:
            raise GdbError("no such thread")
        return self._continue(eligible)

    def _step(self, thread: Thread, within: tuple[int, int] | None) -> str:
        self._debugger.select(thread)
        before = self._debugger.position
        while True:
            stop = self._one(thread)
            if stop.reason is not DebugStopReason.STEP or within is None:
                break
            rip = self._rip(thread)
            if not within[0] <= rip < within[1] or rip in self._addresses():
                break
            if self._is_urgent():
                return self._reply(stop, signal=SIGINT)
        if stop.reason is DebugStopReason.DONE:
            if stop.position == before:
                return self._text(SIGTRAP, thread, _END)
            self._say_result(thread)
            return self._text(SIGTRAP, thread)
        if isinstance(thread, OperationThread):
            self._say(f"thread {thread.number}, {thread.name}: {thread.state}")
        return self._reply(
            stop, signal=SIGTRAP if stop.reason in (DebugStopReason.STEP, DebugStopReason.BLOCKED) else None
        )

    def _one(self, thread: Thread) -> DebugStop:
        """Make one step, or more for a watchpoint."""
        if not isinstance(thread, TaskThread) or not any(isinstance(point, DataAccess) for point in self.signs):
            return self._debugger.step()
        stop = self._debugger.run(1)
        return stop._replace(reason=DebugStopReason.STEP) if stop.reason is DebugStopReason.LIMIT else stop

    def _continue(self, eligible: list[Thread]) -> str:
        debugger = self._debugger
        if self.destination is not None:
            destination, self.destination = self.destination, None
            return self._reply(debugger.goto(destination), signal=NO_SIGNAL)
        is_alone = len(eligible) < len(debugger.threads)
        go, self.goal = self.goal or (self._run_alone if is_alone else debugger.run), None
        waiting: list[Thread] = []
        stop: DebugStop | None = None
        while thread := next((one for one in eligible if not one.is_done and one not in waiting), None):
            debugger.select(thread)
            if stop is not None and self._rip(thread) in self._addresses():
                return self._text(SIGTRAP, thread, self._sign_at(self._rip(thread)))
            before = debugger.position
            stop = self._run(go)
            if debugger.position > before:
                waiting.clear()
            if stop.reason is DebugStopReason.DONE:
                self._say_result(thread)
            elif stop.reason is DebugStopReason.BLOCKED:
                waiting.append(thread)
                self._say(f"thread {thread.number} waits: {stop.message}")
            else:
                return self._reply(stop)
            if self._is_urgent():
                return self._reply(stop, signal=SIGINT)
        return self._ended(eligible, stop)

    def _run_alone(self) -> DebugStop:
        """Run the current thread and no other (gdb's scheduler-locking)."""
        return self._debugger.step(_FAR)

    def _run(self, go: Callable[[], DebugStop]) -> DebugStop:
        """Run, and resume after an interruption that has been withdrawn."""
        while True:
            stop = go()
            if stop.reason is not DebugStopReason.INTERRUPTED or self._is_urgent():
                return stop

    def _ended(self, eligible: Iterable[Thread], stop: DebugStop | None) -> str:
        """Stop reply if none of these threads can continue."""
        debugger = self._debugger
        thread = (stop.thread if stop is not None else None) or debugger.thread
        if any(not one.is_done for one in eligible):
            return self._text(NO_SIGNAL, thread)
        return self._text(SIGTRAP, thread, _END)

    # Backwards ------------------------------------------------------------------------------------------------------

    def step_back(self, looked_at: int) -> str:
        """Go back before the last step of the thread that gdb shows, and undo later steps of others."""
        debugger, thread = self._debugger, self.thread(looked_at)
        position = debugger.last_step(thread)
        if position is None:
            return self._text(SIGTRAP, thread, _BEGIN)
        debugger.goto(position)
        debugger.select(thread)
        return self._text(SIGTRAP, thread)

    def run_back(self) -> str:
        """Go back to a breakpoint, or to the start."""
        debugger = self._debugger
        if debugger.position > self.first:
            stop = self._access_behind() or self._run(debugger.run_back)
            if isinstance(stop.breakpoint, DataAccess):
                # gdb looks for a changed value: it needs the position before the access.
                debugger.back()
                return self._text(SIGTRAP, stop.thread, self.signs[stop.breakpoint])
            if stop.reason is not DebugStopReason.START:
                return self._reply(stop)
        return self._at_first()

    def _access_behind(self) -> DebugStop | None:
        """The stop of the last step if it accessed watched data; a debugger that goes back from after it does not
        report that.
        """
        debugger = self._debugger
        if not any(isinstance(point, DataAccess) for point in self.signs):
            return None
        here = debugger.position
        if debugger.back().reason is DebugStopReason.STEP and isinstance(debugger.thread, TaskThread):
            stop = debugger.run(1)
            if isinstance(stop.breakpoint, DataAccess):
                return stop
        debugger.goto(here)
        return None

    def _at_first(self) -> str:
        """Stop reply at the start, before all steps; changes by the user there are kept."""
        debugger = self._debugger
        if debugger.position < self.first:
            debugger.goto(self.first)
        debugger.select(debugger.threads[0])
        return self._text(SIGTRAP, debugger.thread, _BEGIN)

    # Stop replies ---------------------------------------------------------------------------------------------------

    def now(self) -> str:
        """Stop reply for the query of the current state."""
        return self._text(SIGTRAP, self._debugger.thread)

    def _reply(self, stop: DebugStop, signal: int | None = None) -> str:
        found = stop.breakpoint
        if signal is None:
            signal = self._signal(stop)
        if stop.reason is DebugStopReason.BREAKPOINT and found is not None and found in self.signs:
            return self._text(signal, stop.thread, self.signs[found])
        if stop.message:
            self._say(stop.message.splitlines()[0])
        if stop.event is not None:
            self._say(describe(stop.event, self._debugger.symbol))
        return self._text(signal, stop.thread)

    @staticmethod
    def _signal(stop: DebugStop) -> int:
        if stop.reason is DebugStopReason.INTERRUPTED:
            return SIGINT
        if stop.reason is DebugStopReason.FAULT:
            return next((signal for kind, signal in _FAULTS.items() if stop.message.startswith(kind)), SIGABRT)
        return SIGTRAP if stop.reason is DebugStopReason.BREAKPOINT else NO_SIGNAL

    def _text(self, signal: int, thread: Thread | None, more: str = "") -> str:
        """``T05thread:1;core:0;swbreak:;``."""
        self.told = thread.number if thread is not None else 0
        if thread is None:
            return f"S{signal:02x}"
        core = f"core:{thread.cpu:x};" if thread.cpu is not None else ""
        return f"T{signal:02x}thread:{thread.number:x};{core}{more}"

    def _say_result(self, thread: Thread) -> None:
        if isinstance(thread, TaskThread) and thread.value is not None:
            self._say(f"thread {thread.number}, {thread.name}, returned {thread.value:#x}")
        elif isinstance(thread, OperationThread):
            how = f"failed: {thread.error}" if thread.error is not None else "is done"
            self._say(f"thread {thread.number}, {thread.name}, {how}")

    # Threads and breakpoints ----------------------------------------------------------------------------------------

    def thread(self, number: int) -> Thread:
        """A thread by number; 0: any. GdbError if there is none."""
        debugger = self._debugger
        if number == 0:
            return debugger.thread
        found = next((one for one in debugger.threads if one.number == number), None)
        if found is None:
            raise GdbError(f"no thread {number}")
        return found

    def registers(self, thread: Thread) -> dict[str, int]:
        """Registers of a thread. An operation has only a pseudo rip: gdb needs one to move a thread."""
        return self._debugger.registers(thread) if isinstance(thread, TaskThread) else {"rip": self._process_context}

    def _rip(self, thread: Thread) -> int:
        return self.registers(thread).get("rip", 0)

    def _addresses(self) -> dict[int, Breakpoint]:
        return {one.where: one for one in self.signs if isinstance(one, AtAddress) and isinstance(one.where, int)}

    def _sign_at(self, address: int) -> str:
        return self.signs[self._addresses()[address]]
