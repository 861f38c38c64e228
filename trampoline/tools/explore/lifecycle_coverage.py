"""Coverage of life-cycle states of programs, images, links and metadata, combined with states of the tasks.

A state is one of: an operation at a point (``detach P0: text write``) or complete (``attach P0: done``); memory of a
kind allocated or freed (``kfunc_md: freed``); a grace period in flight and its callback (``waits for
rcu_tasks: BpfTrampImage.put``). A task is in a call, asleep in it, off its CPU in it (preempted, or woken), or not in
a call.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from emu.kernel.process_context import Point, PointKind
from emu.machine.task import TaskState
from emu.schedule.actor import Actor
from emu.schedule.coverage import Coverage
from emu.schedule.operation_actor import ControlActor
from emu.schedule.simulation import World
from emu.schedule.task_actor import GuestActor
from trampoline.tools.explore.scenario import Operation

_KIND = re.compile(r"(?:per-CPU )?([A-Za-z_]+?)(?=_\d|\W|$)")


class LifeWatch:
    """Records states in ``Coverage.states``, as an invariant of a world. Must be made before ``World.open``."""

    IS_CACHE = True

    def __init__(self, world: World, coverage: Callable[[], Coverage]) -> None:
        self._coverage = coverage
        self._rcu = world.kernel.rcu
        self._operations: list[tuple[str, Operation]] = []
        self._happened: set[str] = set()
        self._waits: tuple[str, ...] = ()
        self._waited: tuple[int, int] = (-1, -1)
        self._stands: dict[str, str] = {}
        self._doing: dict[Actor, str] = {}
        world.kernel.process.watchers.append(self._at_point)
        world.memory.on_freed = self._freed

    def schedule(self, operations: Mapping[str, Operation]) -> None:
        """Set the operations of the next schedule."""
        self._operations = list(operations.items())

    def begin(self, world: World) -> None:
        self._happened.clear()
        self._stands.clear()
        self._waited = (-1, -1)
        self._doing = dict.fromkeys((actor for actor in world.actors if isinstance(actor, GuestActor)), "not called")

    def after_step(self, world: World, actor: Actor) -> None:
        rcu, changed = self._rcu, bool(self._happened)
        if self._waited != (rcu.begun, rcu.pending):
            self._waited, changed = (rcu.begun, rcu.pending), True
            self._waits = tuple(sorted({
                f"waits for {period.flavour}: {_asked(callback)}"
                for period in rcu.periods for callback in period.callbacks or (None,)
            }))  # fmt: skip
        if isinstance(actor, ControlActor):
            stands = "" if actor.point is None else actor.point.kind
            if self._stands.get(actor.name) != stands:
                self._stands[actor.name], changed = stands, True
        elif isinstance(actor, GuestActor):
            doing = _doing(actor)
            if self._doing.get(actor) != doing:
                self._doing[actor], changed = doing, True
        if not changed:
            return
        states, meanwhile = self._coverage().states, set(self._doing.values())
        for state in (*self._waits, *self._happened, *self._of_operations()):
            for doing in meanwhile:
                states.add((state, doing))
        self._happened.clear()

    def at_rest(self, world: World) -> None:
        """Nothing to record."""

    def _of_operations(self) -> list[str]:
        found = []
        for name, deeds in self._operations:
            for deed in deeds:
                if deed.ended >= 0:
                    found.append(_state(deed.name, "done" if deed.error is None else "refused"))
                elif deed.begun >= 0 and self._stands.get(name):
                    found.append(_state(deed.name, self._stands[name]))
        return found

    def _at_point(self, point: Point) -> None:
        if point.kind is PointKind.ALLOC:
            self._happened.add(_happened(point.what, "asked for"))

    def _freed(self, name: str) -> None:
        self._happened.add(_happened(name, "freed"))


@lru_cache(maxsize=1 << 12)
def _happened(name: str, what: str) -> str:
    found = _KIND.match(name)
    return _state(found[1] if found else name, what)


@lru_cache(maxsize=1 << 10)
def _state(who: str, what: str) -> str:
    return f"{who}: {what}"


def _asked(callback: object) -> str:
    """Name of the callback of a grace period, or of the function that waits for it."""
    if callback is None:
        return "synchronize"
    if isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", callback)).partition(".<locals>")[0]


def _doing(actor: GuestActor) -> str:
    if actor.vcpu is not None:
        return "in a call"
    if actor.task.state is TaskState.SLEEPING:
        return "asleep in a call"
    call = actor.call
    return "off its cpu in a call" if call is not None and call.begun >= 0 else "not called"
