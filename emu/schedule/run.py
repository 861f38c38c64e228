"""One run of a schedule: its steps and its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from emu.schedule.action import ScheduleAction, encode, switches
from emu.schedule.actor import Actor, Where
from emu.schedule.footprint import Footprint
from emu.schedule.simulation import World
from emu.schedule.violation import Violation


@dataclass(slots=True)
class Choice:
    """The next action, and the number of steps until the scheduler must be called again."""

    action: ScheduleAction
    steps: int = 1


class Scheduler(Protocol):
    """Chooses the next actor. One object makes many schedules; equal arguments make equal schedules."""

    wants_footprints: bool
    """True if ``Taken.footprint`` must be filled in."""

    def begin(self) -> bool:
        """Start a new schedule; False if none is left."""
        ...

    def choose(self, actions: Sequence[ScheduleAction], last: "Taken | None", step: int) -> Choice | None:
        """One of the enabled actions, at least one; None abandons this schedule as redundant.

        ``last``: the last step; ``step``: number of steps made.
        """
        ...

    def end(self, outcome: "ScheduleOutcome") -> None:
        """Receive the outcome of the schedule."""
        ...


@dataclass(slots=True)
class Taken:
    """One step that was made."""

    action: ScheduleAction
    where: Where
    steps: int
    footprint: Footprint | None = None


@dataclass(slots=True)
class ScheduleOutcome:
    """A finished schedule. ``pruned``: abandoned as redundant; ``cut``: it exceeded the limit on steps."""

    taken: list[Taken] = field(default_factory=list)
    violation: Violation | None = None
    pruned: bool = False
    cut: bool = False

    @property
    def tokens(self) -> list[str]:
        """The schedule, one token per step."""
        return [taken.action.token for taken in self.taken for _ in range(taken.steps)]

    @property
    def text(self) -> str:
        """The schedule as text."""
        return encode(self.tokens)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(taken.steps for taken in self.taken)

    @property
    def switches(self) -> int:
        """Number of switches between actors."""
        return switches(self.tokens)


def run_schedule(world: World, scheduler: Scheduler, *, max_steps: int = 5000) -> ScheduleOutcome:
    """Run the actors of a started world until they are done, an invariant breaks, or the scheduler stops."""
    outcome = ScheduleOutcome()
    try:
        _run(world, scheduler, outcome, max_steps)
        if not (outcome.pruned or outcome.cut):
            world.step = outcome.steps
            for invariant in world.invariants:
                invariant.at_rest(world)
    except Violation as violation:
        outcome.violation = violation
        if outcome.taken:
            outcome.taken[-1].steps = max(outcome.taken[-1].steps, violation.steps)
    return outcome


def _run(world: World, scheduler: Scheduler, outcome: ScheduleOutcome, max_steps: int) -> None:
    actors, invariants = world.actors, world.invariants
    taken: Taken | None = None
    while True:
        actions: list[ScheduleAction] = []
        for actor in actors:
            actions += actor.actions()
        if not actions:
            stuck = [actor for actor in actors if not actor.finished]
            if stuck:
                raise Violation("deadlock", _stuck(world, stuck))
            return
        choice = scheduler.choose(actions, taken, world.step)
        if choice is None:
            outcome.pruned = True
            return
        action = choice.action
        actor = actors[action.actor]
        taken = Taken(action, actor.where(), 1)
        if scheduler.wants_footprints:
            taken.footprint = actor.footprint(action)
        outcome.taken.append(taken)
        taken.steps = actor.perform(action, choice.steps)
        world.step += taken.steps
        for invariant in invariants:
            invariant.after_step(world, actor)
        if world.step > max_steps:
            outcome.cut = True
            return


def _stuck(world: World, stuck: Sequence[Actor]) -> str:
    return "; ".join(f"{actor.name} ({actor.where().text(world)})" for actor in stuck)
