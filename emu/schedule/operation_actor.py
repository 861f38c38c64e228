"""What process context does, as actors: operations, and grace periods with their callbacks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emu.kernel.errors import KernelError
from emu.kernel.process_context import ControlTask, Lock, Point, PointKind
from emu.kernel.rcu import RcuFlavour
from emu.schedule.action import GRACE_LETTER, ScheduleAction
from emu.schedule.actor import Where
from emu.schedule.footprint import EVERYTHING, Footprint
from emu.schedule.violation import Violation

if TYPE_CHECKING:
    from emu.schedule.simulation import World

RELEASES = frozenset({PointKind.STORE, PointKind.TEXT_WRITE, PointKind.PUBLISH})
"""Points after which others may know of what was allocated before."""


class Driven:
    """Steps a ControlTask from point to point."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._control: ControlTask | None = None
        self._extra = Footprint()

    @property
    def point(self) -> Point | None:
        """Where it stands; None before its first point and at its end."""
        return None if self._control is None else self._control.at

    def _is_blocked(self) -> bool:
        at = self._control.at if self._control is not None else None
        if at is None:
            return False
        if at.kind is PointKind.LOCK:
            return isinstance(at.on, Lock) and at.on.held
        if at.kind is PointKind.IPI:
            return isinstance(at.on, int) and not self._world.takes_interrupts(at.on)
        if at.kind is PointKind.GRACE_PERIOD:
            return self._world.kernel.rcu.is_pending(at.on)
        return False

    def _go_on_for(self, steps: int, owner: object) -> int:
        """So many points at most, and not beyond one behind which somebody else might be able to go on who was not
        before; how many it went.
        """
        control, rcu = self._control, self._world.kernel.rcu
        assert control is not None
        begun, made = rcu.begun, 0
        enables = self._world.enabling_points(owner) if steps > 1 else ()
        while True:
            passed = control.at
            try:
                self._go_on(owner)
            except Violation as violation:
                violation.steps = made + 1
                raise
            made += 1
            if made >= steps or control.done or rcu.begun != begun or self._is_blocked():
                return made
            if passed is not None and passed.kind in enables:
                return made

    def _go_on(self, owner: object) -> None:
        """To the next point. KernelError is an answer; anything else that is raised breaks an invariant."""
        control, world = self._control, self._world
        assert control is not None
        at, begun = control.at, world.kernel.rcu.begun
        world.memory.owner, world.memory.footprint = owner, self._extra
        if at is not None and at.kind in RELEASES:
            world.memory.release()
        if at is not None and at.kind is PointKind.TEXT_WRITE:
            world.text_written(at.on)
        try:
            control.step()
        except KernelError:
            raise
        except Violation:
            raise
        except Exception as error:
            raise Violation(type(error).__name__, str(error)) from error
        finally:
            world.memory.owner = world.memory.footprint = None
        at = control.at
        if at is not None and at.kind is PointKind.UNLOCK and at.on is world.kernel.text_poke.text_mutex:
            world.text_stands()
        if world.kernel.rcu.begun != begun:
            self._extra.writes.add(("rcu", ""))

    def _touches(self, at: Point | None) -> Footprint:
        found = self._extra = Footprint()
        found.reads.add(EVERYTHING)
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

    def _stands(self, before: str) -> Where:
        at = self._control.at if self._control is not None else None
        if at is None:
            return Where(before)
        stores = at.kind is PointKind.STORE and isinstance(at.on, tuple)
        return Where(str(at.kind), at.what, at.on[0] if stores and isinstance(at.on, tuple) else 0)


class ControlActor(Driven):
    """An operation of process context. ``result`` is what it returned, or the KernelError that it raised."""

    def __init__(self, world: "World", index: int, letter: str, name: str, operation: Callable[[], Any]) -> None:
        super().__init__(world)
        self.letter, self.name = letter, name
        self._step = ScheduleAction(index, letter)
        self._operation = operation
        self._control = world.kernel.process.start(operation, name)
        self.result: Any = None
        self.error: KernelError | None = None
        self.begun = self.ended = -1

    @property
    def finished(self) -> bool:
        """See Actor."""
        assert self._control is not None
        return self._control.done

    def actions(self) -> list[ScheduleAction]:
        """See Actor."""
        return [] if self.finished or self._is_blocked() else [self._step]

    def perform(self, action: ScheduleAction, steps: int) -> int:
        """See Actor."""
        assert self._control is not None
        if self.begun < 0:
            self.begun = self._world.step
        made = 0
        try:
            made = self._go_on_for(steps, self)
        except KernelError as error:
            self.error = error
        if self._control.done:
            self.result, self.ended = self._control.result, self._world.step
            self._world.text_stands()
        return max(made, 1)

    def where(self) -> Where:
        """See Actor."""
        return Where("done") if self.finished else self._stands("begins")

    def footprint(self, action: ScheduleAction) -> Footprint:
        """See Actor."""
        assert self._control is not None
        return self._touches(self._control.at)

    def end(self) -> None:
        """See Actor."""
        if self._control is not None and not self._control.done and self.begun >= 0:
            self._control.abandon()


GRACE_VARIANTS = {
    RcuFlavour.RCU: "R",
    RcuFlavour.RCU_TASKS: "T",
    RcuFlavour.RCU_TASKS_TRACE: "X",
    RcuFlavour.SRCU: "S",
}


class GraceActor(Driven):
    """Ends grace periods whose readers have all passed, one at a time, and runs their callbacks."""

    letter = GRACE_LETTER
    name = "grace periods"

    def __init__(self, world: "World", index: int) -> None:
        super().__init__(world)
        self._step = ScheduleAction(index, self.letter)
        self._ends = {
            flavour: ScheduleAction(index, self.letter + variant, f"a grace period of {flavour} ends")
            for flavour, variant in GRACE_VARIANTS.items()
        }

    @property
    def finished(self) -> bool:
        """See Actor."""
        return self._control is None and not self._world.kernel.rcu.pending

    def actions(self) -> list[ScheduleAction]:
        """See Actor."""
        if self._control is not None:
            return [] if self._is_blocked() else [self._step]
        rcu = self._world.kernel.rcu
        return [self._ends[period.flavour] for period in rcu.ready()] if rcu.pending else []

    def perform(self, action: ScheduleAction, steps: int) -> int:
        """See Actor."""
        rcu, process = self._world.kernel.rcu, self._world.kernel.process
        if self._control is None:
            period = next(period for period in rcu.ready() if self._ends[period.flavour].token == action.token)
            self._control = process.start(lambda: rcu.end(period), f"callbacks of {period.flavour}")
        try:
            made = self._go_on_for(1 if len(action.token) > 1 else steps, self)
        except KernelError as error:
            raise Violation("callback failed", str(error)) from error
        if self._control.done:
            self._control = None
            self._world.text_stands()
        return made

    def where(self) -> Where:
        """See Actor."""
        return self._stands("waits")

    def footprint(self, action: ScheduleAction) -> Footprint:
        """See Actor."""
        found = self._touches(self._control.at if self._control is not None else None)
        found.writes.add(("rcu", ""))
        return found

    def end(self) -> None:
        """See Actor."""
        if self._control is not None:
            self._control.abandon()
            self._control = None
