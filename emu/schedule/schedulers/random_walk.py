"""Random schedules: every enabled action equally likely, or with weights."""

import math
from collections.abc import Callable, Sequence
from random import Random

from emu.schedule.action import ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken


class RandomWalk:
    """At every step one of the enabled actions, with a probability by ``weight`` (all equal without).

    The number of steps of an action is drawn in advance: the same distribution with fewer calls. ``first``: see Pct.
    """

    wants_footprints = False

    def __init__(
        self,
        seed: int,
        *,
        weight: Callable[[ScheduleAction, ScheduleAction | None], float] | None = None,
        first: int = 0,
    ) -> None:
        self._seed, self._weight = seed, weight
        self._number = first
        self._random = Random()

    def begin(self) -> bool:
        self._random = Random(f"walk {self._seed} {self._number}")
        self._number += 1
        return True

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        random = self._random
        if len(actions) == 1:
            return Choice(actions[0], 1)
        if self._weight is None:
            action = actions[int(random.random() * len(actions))]
            stays = 1 / len(actions)
        else:
            before = None if last is None else last.action
            weights = [self._weight(action, before) for action in actions]
            action = random.choices(actions, weights)[0]
            again = [self._weight(other, action) for other in actions]
            stays = self._weight(action, action) / sum(again)
        if len(action.token) > 1:
            return Choice(action)
        steps = 1 + int(math.log(1 - random.random()) / math.log(stays)) if 0 < stays < 1 else 1
        return Choice(action, steps)

    def end(self, outcome: ScheduleOutcome) -> None:
        pass


def sticky(stay: float) -> Callable[[ScheduleAction, ScheduleAction | None], float]:
    """Weights with which the last actor is ``stay`` times as likely to continue as each other one."""
    return lambda action, last: stay if last is not None and action.actor == last.actor else 1.0
