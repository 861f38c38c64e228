"""One schedule: who went on, step by step, and how it ended."""

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
    """What to do next, and for how many steps nobody need be asked again."""

    action: ScheduleAction
    steps: int = 1


class Scheduler(Protocol):
    """Decides who goes on. One object makes many schedules; the same arguments make the same ones."""

    wants_footprints: bool
    """Whether ``Taken.footprint`` is to be filled in."""

    def begin(self) -> bool:
        """A new schedule begins; False where there is none left."""
        ...

    def choose(self, actions: Sequence[ScheduleAction], last: "Taken | None", step: int) -> Choice | None:
        """One of the enabled actions, of which there is at least one; None gives this schedule up as redundant.

        ``last``: what was done last; ``step``: how many steps were made.
        """
        ...

    def end(self, outcome: "ScheduleOutcome") -> None:
        """How the schedule ended."""
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
    """A schedule that was run. ``pruned``: given up as redundant; ``cut``: it had more steps than are allowed."""

    taken: list[Taken] = field(default_factory=list)
    violation: Violation | None = None
    pruned: bool = False
    cut: bool = False

    @property
    def tokens(self) -> list[str]:
        """The schedule, one token a step."""
        return [taken.action.token for taken in self.taken for _ in range(taken.steps)]

    @property
    def text(self) -> str:
        """The schedule as text."""
        return encode(self.tokens)

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(taken.steps for taken in self.taken)

    @property
    def switches(self) -> int:
        """How often another actor went on."""
        return switches(self.tokens)


def run_schedule(world: World, scheduler: Scheduler, *, max_steps: int = 5000) -> ScheduleOutcome:
    """Run the actors of a world that has begun until they are done, an invariant is broken, or no more is wanted."""
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
