"""Actors of process context: operations, and grace periods with their callbacks."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from emu.kernel.process_context import Lock, Point, PointKind
from emu.kernel.rcu import RcuFlavour
from emu.schedule.action import GRACE_LETTER, ScheduleAction
from emu.schedule.actor import Where
from emu.schedule.footprint import EVERYTHING, Footprint
from emu.schedule.violation import Violation
from emu.threads.moves import Begin
from emu.threads.thread import OperationThread

if TYPE_CHECKING:
    from emu.schedule.simulation import World

RELEASES = frozenset({PointKind.STORE, PointKind.TEXT_WRITE, PointKind.PUBLISH})
"""Points that may publish what was allocated before."""


class ScheduledOperation(OperationThread):
    """An operation that also stops before its stores to published memory.

    ``letter``: of the actor that owns the memory that it allocates, until it is published.
    """

    def __init__(self, world: "World", letter: str, number: int, name: str, do: Callable[[], Any]) -> None:
        super().__init__(world.kernel, number, name, do)
        self._world, self._letter = world, letter
        self.extra = Footprint()
        """Receives the places that the current step touches."""

    def step(self) -> None:
        memory = self._world.memory
        memory.owner, memory.footprint = self._letter, self.extra
        try:
            if self.point is not None and self.point.kind in RELEASES:
                memory.release()
            super().step()
        finally:
            memory.owner = memory.footprint = None

    def go_on(self, steps: int) -> int:
        """Pass up to ``steps`` points, but stop after one that may enable another actor; returns the number passed.
        Violation, also for any exception other than KernelError.
        """
        world, rcu, memory = self._world, self._world.kernel.rcu, self._world.memory
        begun, made = rcu.begun, 0
        enables = world.enabling_points(self._letter) if steps > 1 else ()
        memory.owner, memory.footprint = self._letter, self.extra
        try:
            while True:
                passed = self.point
                made += 1
                if passed is not None:
                    if passed.kind in RELEASES:
                        memory.release()
                    if passed.kind is PointKind.TEXT_WRITE:
                        world.text_written(passed.on)
                OperationThread.step(self)
                at = self.point
                if at is None or (at.kind is PointKind.UNLOCK and at.on is world.kernel.text_poke.text_mutex):
                    world.text_stands()
                if rcu.begun != begun:
                    self.extra.writes.add(("rcu", ""))
                    return made
                if made >= steps or self.is_done or world.threads.waits_for(at):
                    return made
                if passed is not None and passed.kind in enables:
                    return made
        except Exception as error:
            violation = error if isinstance(error, Violation) else Violation(type(error).__name__, str(error))
            violation.steps = made
            raise violation from error
        finally:
            memory.owner = memory.footprint = None

    def footprint(self) -> Footprint:
        """Places that the next step will touch; the step may add to it."""
        found = self.extra = Footprint()
        found.reads.add(EVERYTHING)
        at = self.point
        if at is None:
            return found
        if at.kind in (PointKind.LOCK, PointKind.UNLOCK) and isinstance(at.on, Lock):
            found.writes.add(("lock", at.on.name))
            if at.on.name == "text_mutex":
                found.writes.add(("text", "patches"))
        elif at.kind is PointKind.IPI and isinstance(at.on, int):
            found.writes.add(("cpu", at.on))
            found.writes.add(("text", "patches"))
        elif at.kind is PointKind.TEXT_WRITE and isinstance(at.on, tuple):
            found.text(at.on[0], at.on[1], writes=True)
            found.writes.add(("text", "patches"))
        elif at.kind is PointKind.STORE and isinstance(at.on, tuple):
            found.memory(at.on[0], at.on[1], writes=True)
        elif at.kind is PointKind.GRACE_PERIOD:
            found.writes.add(("rcu", ""))
        elif at.kind is PointKind.ALLOC:
            found.writes.add(("allocator", ""))
        return found

    def stands(self, before: str) -> Where:
        """Its position; ``before``: in words, before its first point."""
        at = self.point
        if at is None:
            return Where(before)
        stores = at.kind is PointKind.STORE and isinstance(at.on, tuple)
        return Where(str(at.kind), at.what, at.on[0] if stores and isinstance(at.on, tuple) else 0)


class ControlActor:
    """An operation of process context."""

    def __init__(self, world: "World", index: int, letter: str, name: str, operation: Callable[[], Any]) -> None:
        self.letter, self.name = letter, name
        self._world, self._step = world, ScheduleAction(index, letter)
        self.thread = ScheduledOperation(world, letter, index + 1, name, operation)

    @property
    def finished(self) -> bool:
        return self.thread.is_done

    @property
    def point(self) -> Point | None:
        """The point where it waits; None before its first point and at its end."""
        return self.thread.point

    def actions(self) -> list[ScheduleAction]:
        thread = self.thread
        return [] if thread.is_done or self._world.threads.waits_for(thread.point) else [self._step]

    def moves(self, token: str) -> list[Begin]:
        return []

    def perform(self, action: ScheduleAction, steps: int) -> int:
        return self.thread.go_on(steps)

    def where(self) -> Where:
        return Where("done") if self.finished else self.thread.stands("begins")

    def footprint(self, action: ScheduleAction) -> Footprint:
        return self.thread.footprint()

    def end(self) -> None:
        self.thread.abandon()


GRACE_VARIANTS = {
    RcuFlavour.RCU: "R",
    RcuFlavour.RCU_TASKS: "T",
    RcuFlavour.RCU_TASKS_TRACE: "X",
    RcuFlavour.SRCU: "S",
}


class GraceActor:
    """Ends grace periods whose readers have all finished, one at a time, and runs their callbacks."""

    letter = GRACE_LETTER
    name = "grace periods"

    def __init__(self, world: "World", index: int) -> None:
        self._world, self._numbers, self._extra = world, index, Footprint()
        self.thread: ScheduledOperation | None = None
        """The callbacks that run, or ran last."""
        self._step = ScheduleAction(index, self.letter)
        self._ends = {
            flavour: ScheduleAction(index, self.letter + variant, f"a grace period of {flavour} ends")
            for flavour, variant in GRACE_VARIANTS.items()
        }

    @property
    def _callbacks(self) -> ScheduledOperation | None:
        return None if self.thread is None or self.thread.is_done else self.thread

    @property
    def finished(self) -> bool:
        return self._callbacks is None and not self._world.kernel.rcu.pending

    @property
    def point(self) -> Point | None:
        """The point where the callbacks wait; None if none run."""
        return None if self.thread is None else self.thread.point

    def actions(self) -> list[ScheduleAction]:
        callbacks = self._callbacks
        if callbacks is not None:
            return [] if self._world.threads.waits_for(callbacks.point) else [self._step]
        rcu = self._world.kernel.rcu
        return [self._ends[period.flavour] for period in rcu.ready()] if rcu.pending else []

    def moves(self, token: str) -> list[Begin]:
        flavour = next((flavour for flavour, variant in GRACE_VARIANTS.items() if variant == token[1:]), None)
        if flavour is None:
            return []
        self._numbers += 1
        end = partial(self._world.kernel.rcu.end_oldest, flavour)
        self.thread = ScheduledOperation(self._world, self.letter, self._numbers, f"callbacks of {flavour}", end)
        self.thread.extra = self._extra
        return [Begin(self.thread)]

    def perform(self, action: ScheduleAction, steps: int) -> int:
        begins = self.moves(action.token)
        thread = self.thread
        assert thread is not None
        made = thread.go_on(1 if begins else steps)
        if thread.error is not None:
            raise Violation("callback failed", str(thread.error)) from thread.error
        return made

    def where(self) -> Where:
        return Where("waits") if self.thread is None else self.thread.stands("waits")

    def footprint(self, action: ScheduleAction) -> Footprint:
        callbacks = self._callbacks
        found = self._extra = Footprint({EVERYTHING}) if callbacks is None else callbacks.footprint()
        found.writes.add(("rcu", ""))
        return found

    def end(self) -> None:
        if self.thread is not None:
            self.thread.abandon()
