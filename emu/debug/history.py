"""A kernel at a position of the timeline, and the way to other positions."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from emu.debug.action_log import Timeline
from emu.debug.errors import DebugError
from emu.debug.steps import DebuggedThreads, StepsMade
from emu.errors import GuestFault
from emu.events import Event
from emu.kernel.kernel import Kernel, KernelState
from emu.machine.engine import Exit
from emu.machine.faults import INT3
from emu.machine.vcpu import Vcpu
from emu.threads.moves import Begin, Do, Go
from emu.threads.thread import OperationThread, TaskThread, Thread

SPACING = 4000
"""Initial number of moves between two checkpoints: at most these are repeated to go back."""
MOST_CHECKPOINTS = 128
"""Maximum number of checkpoints; then every second one is dropped, and the distance between new ones doubled."""


@dataclass(slots=True)
class _Quick:
    """A task at ``rip`` that has just made a single step at the end of the timeline, and will probably make another.
    ``due``: position of the next checkpoint.
    """

    thread: TaskThread
    vcpu: Vcpu
    rip: int
    due: int


@dataclass(frozen=True, slots=True)
class _Kept:
    position: int
    state: KernelState
    threads: tuple[tuple[Thread, object], ...]
    trapped: frozenset[int]


class ActionHistory(DebuggedThreads):
    """Moves and checkpoints of one kernel. ``roots``: Python objects besides the kernel that moves change.

    ``restored``: resets what no checkpoint can hold to the start; the first checkpoint is then the only one.
    """

    def __init__(
        self, kernel: Kernel, roots: Iterable[object], restored: Callable[[], None] | None = None
    ) -> None:
        super().__init__(kernel)
        self._restored = restored
        self._roots = list(roots)
        self.timeline = Timeline()
        self.events: list[tuple[int, Event]] = []
        """Events of the whole timeline, each with the position after its move."""
        self._quick: _Quick | None = None
        self._outside = kernel.machine.host_calls.return_address
        self._spacing = SPACING
        self._kept: list[_Kept] = []
        self._keep()

    # Making moves ---------------------------------------------------------------------------------------------------

    def make(self, move: Begin | Do) -> None:
        """Make a move that is no step, for the first time. If it raises, nothing is changed."""
        self._quick = None
        self._fresh, self._is_first_time = [], True
        self._running, self._made = None, 1
        try:
            self._perform(move)
        except Exception:
            self._go_back_to(self.position)
            raise
        finally:
            self._is_first_time = False
        self._note(move, 1)
        if isinstance(move, Begin) and isinstance(move.thread, OperationThread):
            # An object that was unreachable until now has not changed since the start.
            for python in {id(kept.state.python): kept.state.python for kept in self._kept}.values():
                python.extend(move.thread.roots())

    def quick_step(self, thread: Thread | None) -> bool:
        """Make one step of a thread in the common case: a single step after another one, of an ordinary instruction.
        False: nothing was done.
        """
        quick = self._quick
        if quick is None or quick.thread is not thread or self.position >= quick.due:
            return False
        vcpu = quick.vcpu
        vcpu.engine.limit(1)
        reached, rip = vcpu.execute(quick.rip)
        if reached is Exit.LIMIT:
            quick.rip = rip
            self.position += 1
            self.timeline.again()
            if rip == self._outside:
                self._quick = None
                self._end_task(quick.thread, vcpu)
            return True
        self._quick = None
        if reached is Exit.HALT or (reached is Exit.INTERRUPT and vcpu.engine.interrupt_number == INT3):
            # These only end the run: they are repeated, and handled.
            vcpu.regs.rip = rip - 1
        elif reached is not Exit.TICK:
            vcpu.forget_exception()
            if rip != quick.rip:
                # The next instruction can't be fetched; this one was executed.
                self.position += 1
                self.timeline.again()
                return True
        return False

    def be_quick(self, thread: Thread) -> None:
        """After a single step of a thread: let ``quick_step`` make the next one, if possible."""
        vcpu = self.vcpu_of(thread)
        if vcpu is None or vcpu.index in self.trapped:
            return
        if self.position == self.timeline.end and isinstance(thread, TaskThread):
            self._quick = _Quick(thread, vcpu, vcpu.regs.rip, self._due)

    def go(self, thread: Thread, steps: int) -> StepsMade:
        """Make up to ``steps`` steps of a thread, for the first time; fewer at a mark, an event, a watched access, or
        when a checkpoint is due.
        """
        self._quick = None
        if isinstance(thread, OperationThread) and not thread.has_begun and self._kept[-1].position != self.position:
            self._keep()
        steps = min(steps, max(self._due - self.position, 1))
        self._fresh, self._is_first_time = [], True
        try:
            ran = self._go(thread, steps)
        finally:
            self._is_first_time = False
        if ran.steps:
            self._note(Go(thread), ran.steps)
        if ran.error is not None:
            ran = self._undo_fault(thread, ran, ran.error)
        elif self.position >= self._due:
            self._keep()
        return ran

    def _note(self, move: Go | Begin | Do, count: int) -> None:
        new = self.timeline.add(self.position, move, count)
        if new is not None:
            while self.events and self.events[-1][0] > new:
                self.events.pop()
            while self._kept[-1].position > new:
                self._kept.pop()
            self.events += [found for found in self._fresh if found[0] > new]
        self.position += count

    def _undo_fault(self, thread: Thread, ran: StepsMade, error: Exception) -> StepsMade:
        """Return to the state before the step that faulted."""
        self._go_back_to(self.position)
        if isinstance(error, GuestFault) and isinstance(thread, TaskThread) and error.rip != self.register(thread):
            # The engine stopped before it counted the instruction before it.
            with suppress(Exception):
                if self._go(thread, 1).error is None:
                    self._fresh = []
                    self._note(Go(thread), 1)
                    return StepsMade(ran.steps + 1, error)
            self._go_back_to(self.position)
        return ran

    def _perform(self, move: Begin | Do) -> None:
        """Make a move that is no step."""
        self._python = None
        move.perform()
        if isinstance(move, Begin):
            self.threads.append(move.thread)

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def _due(self) -> int:
        """Position of the next checkpoint."""
        at = bisect_right(self._kept, self.position, key=lambda kept: kept.position) - 1
        return self._kept[at].position + self._spacing

    def _keep(self) -> None:
        """Take a checkpoint, unless an operation is under way."""
        if self._kept and self._restored is not None:
            return
        if any(isinstance(thread, OperationThread) and thread.is_under_way for thread in self.threads):
            return
        at = bisect_right(self._kept, self.position, key=lambda kept: kept.position)
        if at and self._kept[at - 1].position == self.position:
            return
        operations = [thread for thread in self.threads if isinstance(thread, OperationThread)]
        roots = [*self._roots, *(thing for thread in operations for thing in thread.roots())]
        state = self.kernel.checkpoint(roots, [self, *self._own()], python=self._python)
        self._python = state.python
        threads = tuple((thread, thread.capture()) for thread in self.threads)
        self._kept.insert(at, _Kept(self.position, state, threads, frozenset(self.trapped)))
        if len(self._kept) > MOST_CHECKPOINTS:
            del self._kept[1::2]
            self._spacing *= 2

    def _own(self) -> list[object]:
        return [self.timeline, self.threads, self.events, self.marks, self._watches, self.stops_at_events]

    def checkpoint_before(self, position: int) -> int:
        """Position of the last checkpoint at or before a position."""
        return self._kept[bisect_right(self._kept, position, key=lambda kept: kept.position) - 1].position

    def goto(self, position: int) -> None:
        """Go to a position of the timeline. DebugError."""
        if not 0 <= position <= self.timeline.end:
            raise DebugError(f"no position {position}: there are 0 to {self.timeline.end}")
        if position < self.position or self.checkpoint_before(position) > self.position:
            self._go_back_to(position)
        else:
            self._follow(position)

    def _go_back_to(self, position: int) -> None:
        self._restore(self._kept[bisect_right(self._kept, position, key=lambda kept: kept.position) - 1])
        self._follow(position)

    def _restore(self, kept: _Kept) -> None:
        self._quick = None
        for thread in self.threads:
            if isinstance(thread, OperationThread):
                thread.abandon()
        self.kernel.restore(kept.state)
        if self._restored is not None:
            self._restored()
        self._python = kept.state.python
        self.threads[:] = [thread for thread, _ in kept.threads]
        for thread, record in kept.threads:
            thread.restore(record)
        self.trapped = set(kept.trapped)
        self.position = kept.position

    def _follow(self, position: int) -> None:
        """Repeat the timeline's moves up to a position; nothing ends a run early."""
        while self.position < position:
            self.repeat(position)

    def repeat(self, position: int) -> StepsMade:
        """Repeat the timeline's next moves: one, or steps of one thread, up to a position. DebugError."""
        self._quick = None
        move, times = self.timeline.at(self.position)
        if not isinstance(move, Go):
            self._perform(move)
            self.position += 1
            return StepsMade(1)
        steps = min(times, position - self.position, max(self._due - self.position, 1))
        ran = self._go(move.thread, steps)
        if ran.error is not None or ran.steps == 0:
            raise DebugError(f"position {self.position} can't be reached again: {ran.error or ran.blocked}")
        self.position += ran.steps
        if self.position >= self._due:
            self._keep()
        return ran
