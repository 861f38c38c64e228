"""Runs to a breakpoint, forwards and backwards."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.debug.breakpoints import Breakpoint, DataAccess
from emu.debug.calls import CalledFrom, Left, Returned, is_call, is_repeated, is_return, return_addresses
from emu.debug.errors import DebugError
from emu.debug.history import ActionHistory
from emu.debug.steps import StepsMade
from emu.debug.stop import DebugStop, DebugStopReason
from emu.errors import GuestFault
from emu.threads.moves import Go
from emu.threads.thread import OperationThread, TaskThread, Thread

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger

CHUNK = 50_000
"""Instructions between two checks of whether the user interrupted a run."""


@dataclass(slots=True)
class _Plan:
    """The breakpoints of a run. ``anywhere``: each instruction must be checked."""

    breakpoints: list[tuple[Breakpoint, Collection[int] | None]]
    addresses: set[int]
    anywhere: bool

    def hit(self, debugger: "Debugger", rip: int) -> Breakpoint | None:
        """The first breakpoint that fires at the current thread's position."""
        if not self.anywhere and rip not in self.addresses:
            return None
        for breakpoint, addresses in self.breakpoints:
            if (addresses is None or rip in addresses) and breakpoint.met(debugger):
                return breakpoint
        return None


class Search:
    """Runs of a debugger."""

    def __init__(self, debugger: "Debugger", record: ActionHistory) -> None:
        self._debugger, self._record = debugger, record
        self.interrupted = False

    # Forwards -------------------------------------------------------------------------------------------------------

    def one(self, thread: Thread) -> DebugStop:
        """One step of a thread."""
        debugger, record = self._debugger, self._record
        if record.quick_step(thread):
            return self._done(thread) if thread.is_done else DebugStop(DebugStopReason.STEP, thread, record.position)
        refused = self._refused(thread)
        if refused is not None:
            return refused
        ran = record.go(thread, 1)
        if ran.error is not None:
            return debugger.stopped(DebugStopReason.FAULT, _told(ran.error))
        if thread.is_done:
            return self._done(thread)
        record.be_quick(thread)
        return debugger.stopped(DebugStopReason.STEP)

    def forward(
        self, thread: Thread, breakpoints: Sequence[Breakpoint], *, limit: int | None, reason: DebugStopReason
    ) -> DebugStop:
        """Make up to ``limit`` steps of one thread: ``reason`` is that of the limit. A breakpoint that is not among the
        debugger's own is the goal of the run.
        """
        refused = self._refused(thread)
        if refused is not None:
            return refused
        plan = self._prepare(breakpoints)
        with_limit = self._run_thread(thread, plan, limit)
        if isinstance(with_limit, DebugStop):
            return with_limit
        if not thread.is_done and self._record.why_blocked(thread):
            return self._debugger.stopped(DebugStopReason.BLOCKED, self._record.why_blocked(thread))
        return self._debugger.stopped(reason)

    def run(
        self,
        breakpoints: Sequence[Breakpoint],
        limit: int | None,
        *,
        reason: DebugStopReason = DebugStopReason.BREAKPOINT,
    ) -> DebugStop:
        """Implements ``Debugger.run``. ``reason``: of a stop at a breakpoint that is not among the debugger's own."""
        debugger, record = self._debugger, self._record
        wanted = self._next_thread(debugger.thread)
        if wanted is None:
            return debugger.stopped(DebugStopReason.DONE, "all threads are done")
        plan = self._prepare(breakpoints)
        begun = record.position
        while True:
            thread = self._thread_to_run(wanted)
            if thread is None:
                return debugger.stopped(DebugStopReason.BLOCKED, record.why_blocked(wanted))
            debugger.select(thread)
            left = None if limit is None else limit - (record.position - begun)
            if left is not None and left <= 0:
                return debugger.stopped(DebugStopReason.LIMIT)
            stop = self._run_thread(thread, plan, left)
            if isinstance(stop, DebugStop) and (stop.reason is not DebugStopReason.DONE or thread is wanted):
                if stop.breakpoint is not None and stop.breakpoint not in debugger.breakpoints:
                    return debugger.stopped(reason)
                return stop

    def over(self, thread: Thread, breakpoints: Sequence[Breakpoint]) -> DebugStop:
        """Implements ``Debugger.step_over``."""
        refused = self._refused(thread)
        if refused is not None or isinstance(thread, OperationThread):
            return refused or self.one(thread)
        debugger = self._debugger
        rip, rsp = debugger.rip, self._rsp(thread)
        line = debugger.code_line(rip)
        goal: Breakpoint
        if is_call(line.code):
            targets = frozenset({rip + len(line.code), *self._returns(thread, rsp)})
            goal = Returned(targets, rsp)
        elif is_repeated(line.code):
            goal = Left(rip)
        else:
            return self.one(thread)
        return self._to_goal(thread, breakpoints, goal)

    def out(self, thread: Thread, breakpoints: Sequence[Breakpoint]) -> DebugStop:
        """Implements ``Debugger.step_out``."""
        if isinstance(thread, OperationThread):
            return self.forward(thread, breakpoints, limit=None, reason=DebugStopReason.DONE)
        refused = self._refused(thread)
        if refused is not None:
            return refused
        rsp = self._rsp(thread)
        return self._to_goal(thread, breakpoints, Returned(frozenset(self._returns(thread, rsp)), rsp + 8, by_ret=True))

    def _to_goal(self, thread: Thread, breakpoints: Sequence[Breakpoint], goal: Breakpoint) -> DebugStop:
        stop = self.forward(thread, [*breakpoints, goal], limit=None, reason=DebugStopReason.STEP)
        return self._debugger.stopped(DebugStopReason.STEP) if stop.breakpoint is goal else stop

    def _refused(self, thread: Thread) -> DebugStop | None:
        """A stop if a thread can't make a step."""
        if thread.is_done:
            return self._done(thread)
        why = self._record.why_blocked(thread)
        return self._debugger.stopped(DebugStopReason.BLOCKED, why) if why else None

    def _done(self, thread: Thread) -> DebugStop:
        message = ""
        if isinstance(thread, TaskThread) and thread.value is not None:
            message = f"{thread.name} returned {thread.value:#x}"
        elif isinstance(thread, OperationThread) and thread.error is not None:
            message = f"{thread.name}: {thread.error}"
        return self._debugger.stopped(DebugStopReason.DONE, message)

    def _next_thread(self, thread: Thread) -> Thread | None:
        if not thread.is_done:
            return thread
        return next((other for other in self._record.threads if not other.is_done), None)

    def _thread_to_run(self, wanted: Thread) -> Thread | None:
        """The thread to run so that a thread can continue; itself if it can, None if none helps."""
        record, debugger = self._record, self._debugger
        waiting = [thread for thread in (wanted, *record.threads) if not thread.is_done]
        for thread in waiting:
            if not record.why_blocked(thread):
                return thread
        periods = debugger.grace_periods
        if periods:
            return debugger.end_grace_period(periods[0])
        for thread in waiting:
            if thread.state == "sleeping":
                debugger.wake(thread)
                return self._thread_to_run(wanted)
        return None

    def _prepare(self, breakpoints: Sequence[Breakpoint]) -> _Plan:
        """Set the engines' stop addresses and watches."""
        debugger, record = self._debugger, self._record
        plan = _Plan([], set(), False)
        for breakpoint in breakpoints:
            found = breakpoint.addresses(debugger)
            addresses = None if found is None else frozenset(found)
            plan.breakpoints.append((breakpoint, addresses))
            if addresses is None or not all(map(record.marks.covers, addresses)):
                plan.anywhere = True
            plan.addresses.update(addresses or ())
            breakpoint.begin(debugger)
        record.marks.set(plan.addresses)
        record.watch(breakpoint for breakpoint in breakpoints if isinstance(breakpoint, DataAccess))
        record.stops_at_events[:] = breakpoints
        return plan

    def _run_thread(self, thread: Thread, plan: _Plan, limit: int | None) -> DebugStop | None:
        """Run a thread; None if the limit is reached or it is blocked."""
        debugger, record = self._debugger, self._record
        made = 0
        while limit is None or made < limit:
            if self.interrupted:
                self.interrupted = False
                return debugger.stopped(DebugStopReason.INTERRUPTED)
            before = len(record.events)
            ran = self._go(thread, plan, CHUNK if limit is None else min(limit - made, CHUNK))
            made += ran.steps
            if ran.error is not None:
                return debugger.stopped(DebugStopReason.FAULT, _told(ran.error))
            if ran.access is not None:
                return debugger.stopped(DebugStopReason.BREAKPOINT, breakpoint=ran.access)
            for _, event in record.events[before:]:
                for breakpoint, _addresses in plan.breakpoints:
                    if breakpoint.wants(event):
                        return debugger.stopped(DebugStopReason.EVENT, breakpoint=breakpoint)
            if thread.is_done:
                return self._done(thread)
            if isinstance(thread, TaskThread):
                found = plan.hit(debugger, record.register(thread))
            else:
                found = plan.hit(debugger, 0) if plan.anywhere else None
            if found is not None:
                return debugger.stopped(DebugStopReason.BREAKPOINT, breakpoint=found)
            if ran.blocked or not ran.steps or record.why_blocked(thread):
                return None
            if isinstance(thread, TaskThread) and record.vcpu_of(thread) is None:
                return None
        return None

    def _go(self, thread: Thread, plan: _Plan, most: int) -> StepsMade:
        record = self._record
        if not isinstance(thread, TaskThread):
            return record.go(thread, 1)
        with record.stopping(thread, plan.addresses) as is_marked:
            return record.go(thread, 1 if plan.anywhere or is_marked else most)

    def _rsp(self, thread: Thread) -> int:
        assert isinstance(thread, TaskThread)
        return self._record.register(thread, "rsp")

    def _returns(self, thread: Thread, rsp: int) -> Iterable[int]:
        assert isinstance(thread, TaskThread)
        assert thread.task is not None
        found = return_addresses(self._debugger.kernel.machine, rsp, thread.task.stack_top)
        return filter(self._record.marks.covers, found)

    # Backwards ------------------------------------------------------------------------------------------------------

    def back(self, n: int) -> DebugStop:
        """Implements ``Debugger.back``."""
        at = reached = self._record.position
        thread = None
        while n and at:
            move, begun = self._record.timeline.before(at)
            if isinstance(move, Go):
                steps = min(n, at - begun)
                n, thread = n - steps, move.thread
                at = reached = at - steps
            else:
                at -= 1
        return self._to(reached, thread, DebugStopReason.START if n else DebugStopReason.STEP)

    def back_over(self, thread: Thread) -> DebugStop:
        """Implements ``Debugger.back_over``."""
        before = self.last_step_of(thread)
        if before is None:
            return self._debugger.stopped(DebugStopReason.START)
        if isinstance(thread, OperationThread):
            return self._to(before, thread, DebugStopReason.STEP)
        assert isinstance(thread, TaskThread)
        ended = thread.is_done
        rip, rsp = self._debugger.kernel.machine.host_calls.return_address, 0
        if not ended:
            rip, rsp = self._record.register(thread), self._rsp(thread)
        stop = self._to(before, thread, DebugStopReason.STEP)
        if ended or not is_return(self._debugger.code_line(self._debugger.rip).code):
            return stop
        found = self._last_hit(before, self._prepare([CalledFrom(rip, rsp)]))
        return self._to(before if found is None else found[0], thread, DebugStopReason.STEP)

    def back_out(self, thread: Thread) -> DebugStop:
        """Implements ``Debugger.back_out``. DebugError if the return address is not known."""
        begun = self._first_step_of(thread)
        if begun is None or begun == self._record.position:
            return self._debugger.stopped(DebugStopReason.START)
        if isinstance(thread, TaskThread) and not thread.is_done:
            calls = self._debugger.backtrace(thread)
            if not calls or calls[0].frame is None:
                raise DebugError("the return address of the current function is not known")
            frame = calls[0].frame
            target = self._debugger.kernel.machine.read_u64(frame - 8)
            found = self._last_hit(self._record.position - 1, self._prepare([CalledFrom(target, frame)]), begun)
            if found is not None:
                return self._to(found[0], thread, DebugStopReason.STEP)
        return self._to(begun, thread, DebugStopReason.START)

    def run_back(self, breakpoints: Sequence[Breakpoint]) -> DebugStop:
        """Implements ``Debugger.run_back``."""
        first = self._first_step_of(None)
        if first is None:
            return self._debugger.stopped(DebugStopReason.START)
        found = self._last_hit(self._record.position - 1, self._prepare(breakpoints), first)
        if found is None:
            return self._to(first, None, DebugStopReason.START)
        at, breakpoint, reason = found
        self._record.goto(at)
        self._debugger._follow_current()
        return self._debugger.stopped(reason, breakpoint=breakpoint)

    def _to(self, position: int, thread: Thread | None, reason: DebugStopReason) -> DebugStop:
        self._record.goto(position)
        if thread is not None and thread in self._record.threads:
            self._debugger.select(thread)
        return self._debugger.stopped(reason)

    def last_step_of(self, thread: Thread) -> int | None:
        """The position before the last step of a thread."""
        at = self._record.position
        while at:
            move, begun = self._record.timeline.before(at)
            if isinstance(move, Go) and move.thread is thread:
                return at - 1
            at = begun
        return None

    def _first_step_of(self, thread: Thread | None) -> int | None:
        """The position before the first step of a thread, or of any."""
        at, found = self._record.position, None
        while at:
            move, at = self._record.timeline.before(at)
            if isinstance(move, Go) and thread in (None, move.thread):
                found = at
        return found

    def _last_hit(self, last: int, plan: _Plan, first: int = 0) -> tuple[int, Breakpoint, DebugStopReason] | None:
        """The last position up to ``last`` at which a breakpoint fires, by stretches between checkpoints."""
        end = last
        while end > first:
            start = self._record.checkpoint_before(end - 1)
            found = self._last_hit_between(start, end, plan)
            if found is not None:
                return found
            end = start
        return None

    def _last_hit_between(self, start: int, end: int, plan: _Plan) -> tuple[int, Breakpoint, DebugStopReason] | None:
        debugger, record = self._debugger, self._record
        found: tuple[int, Breakpoint, DebugStopReason] | None = None
        for position, event in record.events:
            for breakpoint, _ in plan.breakpoints:
                if start < position <= end and breakpoint.wants(event):
                    found = position, breakpoint, DebugStopReason.EVENT
        record.goto(start)
        if record.threads:
            for breakpoint, _ in plan.breakpoints:
                breakpoint.begin(debugger)
        while record.position < end:
            move, times = record.timeline.at(record.position)
            if not isinstance(move, Go) or not isinstance(move.thread, TaskThread):
                record.repeat(record.position + 1)
                thread = move.thread if isinstance(move, Go) else None
                if thread is None or not plan.anywhere:
                    continue
                debugger.select(thread)
                met = plan.hit(debugger, 0)
            else:
                thread = move.thread
                debugger.select(thread)
                with record.stopping(thread, plan.addresses) as is_marked:
                    single = plan.anywhere or is_marked
                    ran = record.repeat(record.position + 1 if single else min(end, record.position + times))
                if ran.access is not None:
                    met = ran.access
                else:
                    met = None if thread.is_done else plan.hit(debugger, record.register(thread))
            if met is not None and (found is None or record.position >= found[0]):
                found = record.position, met, DebugStopReason.BREAKPOINT
        return found


def _told(error: Exception) -> str:
    return error.headline if isinstance(error, GuestFault) else f"{type(error).__name__}: {error}"
