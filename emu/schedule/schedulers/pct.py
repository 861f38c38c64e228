"""PCT: random priorities and few random changes of them (Burckhardt et al., ASPLOS 2010).

A bug of depth d is found by one schedule with a probability of at least 1 / (n * k^(d-1)), for n actors and k steps.
"""

import math
from collections.abc import Sequence
from random import Random

from emu.schedule.action import ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken

_ALL = 1 << 20
"""More steps than a schedule has."""
_COMES_LAST = 0.5
"""How likely a task that is off its CPU stays away until nobody else can go on."""


class Pct:
    """Schedules of ``depth`` d: d - 1 times a step, picked at random, takes its actor's priority away.

    That a task which slept or was preempted comes back to a CPU has a priority of its own, as if somebody else did it:
    it may be away for long, and half of them are until nobody else can go on.
    The number of steps is the most that a schedule has had so far. ``first``: the number of its first schedule; each
    number has random numbers of its own.
    """

    wants_footprints = False

    def __init__(self, seed: int, depth: int = 3, *, steps: int = 60, first: int = 0) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}")
        self._seed, self._depth, self._longest = seed, depth, steps
        self._number = first
        self._random = Random()
        self._priorities: dict[int, float] = {}
        """Of actors, by ``_whose``; the highest goes on. Those that were taken away are negative."""
        self._changes: list[int] = []
        """Steps at which to change, the last first."""
        self._taken_away = 0

    def begin(self) -> bool:
        """See Scheduler."""
        random = self._random = Random(f"pct {self._seed} {self._number}")
        self._number += 1
        self._priorities, self._taken_away = {}, 0
        self._changes = sorted((random.randrange(1, self._longest + 1) for _ in range(self._depth - 1)), reverse=True)
        return True

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        """See Scheduler."""
        priorities, random = self._priorities, self._random
        choices = self._best(actions)
        while self._changes and step >= self._changes[-1]:
            self._changes.pop()
            self._taken_away += 1
            priorities[_whose(choices[0])] = -self._taken_away
            choices = self._best(actions)
        action = choices[0] if len(choices) == 1 else choices[int(random.random() * len(choices))]
        return Choice(action, max(self._changes[-1] - step, 1) if self._changes else _ALL)

    def _best(self, actions: Sequence[ScheduleAction]) -> list[ScheduleAction]:
        """The actions of whoever has the highest priority."""
        priorities, best, found = self._priorities, -math.inf, []
        for action in actions:
            whose = _whose(action)
            priority = priorities.get(whose)
            if priority is None:
                priority = priorities[whose] = self._draw(action)
            if priority > best:
                best, found = priority, [action]
            elif priority == best:
                found.append(action)
        return found

    def _draw(self, action: ScheduleAction) -> float:
        """A priority; lower than all others where a task comes back so late."""
        priority = self._random.random()
        return priority - _ALL if action.returns and self._random.random() < _COMES_LAST else priority

    def end(self, outcome: ScheduleOutcome) -> None:
        """See Scheduler."""
        self._longest = max(self._longest, outcome.steps)


def _whose(action: ScheduleAction) -> int:
    """Who decides when this is done: its actor, by index, or what brings that one back to a CPU."""
    return ~action.actor if action.returns else action.actor
