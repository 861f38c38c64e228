"""Uniform random walk: every interleaving equally likely (after ``urw`` of awslabs/shuttle).

If all enabled actors are equally likely, the short ones finish long before the others. Here an actor's weight is the
number of steps that it has left, by its maximum so far.
"""

from collections.abc import Sequence
from random import Random

from emu.schedule.action import ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken


class UniformWalk:
    """Random walk weighted by the steps that an actor probably has left. ``first``: see Pct."""

    wants_footprints = False

    def __init__(self, seed: int, *, first: int = 0) -> None:
        self._seed, self._number = seed, first
        self._random = Random()
        self._longest: dict[int, int] = {}
        self._made: dict[int, int] = {}

    def begin(self) -> bool:
        self._random = Random(f"urw {self._seed} {self._number}")
        self._number += 1
        self._made = {}
        return True

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        made, longest = self._made, self._longest
        if last is not None:
            actor = last.action.actor
            made[actor] = made.get(actor, 0) + last.steps
        if len(actions) == 1:
            return Choice(actions[0])
        weights = [max(longest.get(action.actor, 1) - made.get(action.actor, 0), 1) for action in actions]
        return Choice(self._random.choices(actions, weights)[0])

    def end(self, outcome: ScheduleOutcome) -> None:
        counts: dict[int, int] = {}
        for taken in outcome.taken:
            counts[taken.action.actor] = counts.get(taken.action.actor, 0) + taken.steps
        for actor, count in counts.items():
            self._longest[actor] = max(self._longest.get(actor, 1), count)
