"""PCT: random priorities and few random changes of them (Burckhardt et al., ASPLOS 2010).

A bug of depth d is found by one schedule with a probability of at least 1 / (n * k^(d-1)), for n actors and k steps.
"""

import math
from collections.abc import Sequence
from random import Random

from emu.schedule.action import ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken

_ALL = 1 << 20
"""Upper limit on the steps of a schedule."""
_COMES_LAST = 0.5
"""Probability that a task that is off its CPU stays away until no other actor can continue."""


class Pct:
    """Schedules of ``depth`` d: at d - 1 random steps, the actor that makes the step loses its priority.

    The return of a slept or preempted task to a CPU has a priority of its own, like a separate actor: the task may be
    away for long, half of them until no other actor can continue. The number of steps is the maximum so far. ``first``:
    the number of its first schedule; each number has its own random numbers.
    """

    wants_footprints = False

    def __init__(self, seed: int, depth: int = 3, *, steps: int = 60, first: int = 0) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}: at least 1")
        self._seed, self._depth, self._longest = seed, depth, steps
        self._number = first
        self._random = Random()
        self._priorities: dict[int, float] = {}
        """Priority by ``_priority_owner``; the highest runs. Lowered ones are negative."""
        self._changes: list[int] = []
        """Steps at which to change, the last first."""
        self._taken_away = 0

    def begin(self) -> bool:
        random = self._random = Random(f"pct {self._seed} {self._number}")
        self._number += 1
        self._priorities, self._taken_away = {}, 0
        self._changes = sorted((random.randrange(1, self._longest + 1) for _ in range(self._depth - 1)), reverse=True)
        return True

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        priorities, random = self._priorities, self._random
        choices = self._best(actions)
        while self._changes and step >= self._changes[-1]:
            self._changes.pop()
            self._taken_away += 1
            priorities[_priority_owner(choices[0])] = -self._taken_away
            choices = self._best(actions)
        action = choices[0] if len(choices) == 1 else choices[int(random.random() * len(choices))]
        return Choice(action, max(self._changes[-1] - step, 1) if self._changes else _ALL)

    def _best(self, actions: Sequence[ScheduleAction]) -> list[ScheduleAction]:
        """The actions with the highest priority."""
        priorities, best, found = self._priorities, -math.inf, []
        for action in actions:
            owner = _priority_owner(action)
            priority = priorities.get(owner)
            if priority is None:
                priority = priorities[owner] = self._draw(action)
            if priority > best:
                best, found = priority, [action]
            elif priority == best:
                found.append(action)
        return found

    def _draw(self, action: ScheduleAction) -> float:
        """A random priority; lower than all others for a task that returns late."""
        priority = self._random.random()
        return priority - _ALL if action.returns and self._random.random() < _COMES_LAST else priority

    def end(self, outcome: ScheduleOutcome) -> None:
        self._longest = max(self._longest, outcome.steps)


def _priority_owner(action: ScheduleAction) -> int:
    """The owner of an action's priority: its actor, by index, or the return of that actor to a CPU."""
    return ~action.actor if action.returns else action.actor
