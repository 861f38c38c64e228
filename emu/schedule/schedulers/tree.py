"""Depth-first search of the tree of schedules, without stored states: every schedule runs from the start."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from emu.schedule.action import BadSchedule, ScheduleAction
from emu.schedule.footprint import Footprint
from emu.schedule.run import Choice, ScheduleOutcome, Taken


@dataclass(slots=True)
class ScheduleNode:
    """A state on the path: its enabled actions, and those to try, tried or redundant."""

    actions: tuple[ScheduleAction, ...]
    last_actor: int = -1
    todo: set[str] = field(default_factory=set)
    """Tokens to try, including those tried."""
    done: dict[str, Footprint] = field(default_factory=dict)
    """Actions tried here before ``chosen``."""
    asleep: dict[str, Footprint] = field(default_factory=dict)
    """Actions that lead only to schedules equivalent to earlier ones."""
    chosen: str = ""
    taken: Taken | None = None
    spent: int = 0
    """Preemptions on the path to this state."""

    def action(self, token: str) -> ScheduleAction:
        """An action by its token."""
        return next(action for action in self.actions if action.token == token)


class DepthFirst(ABC):
    """The search. Subclasses choose the actions to try in a new state."""

    wants_footprints = False

    def __init__(self) -> None:
        self._path: list[ScheduleNode] = []
        self._at = 0
        self._started = False
        self.schedules = 0
        """Number of completed schedules, without the abandoned ones."""
        self.pruned = 0
        """Number of schedules abandoned as redundant."""

    def begin(self) -> bool:
        if self._started and not self._next():
            return False
        self._started, self._at = True, 0
        return True

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        path, at = self._path, self._at
        if at > 0:
            path[at - 1].taken = last
        if at == len(path):
            node = ScheduleNode(tuple(actions), -1 if last is None else last.action.actor)
            if not self.enter(node, path[-1] if path else None):
                return None
            path.append(node)
        node = path[at]
        self._at = at + 1
        for action in actions:
            if action.token == node.chosen:
                return Choice(action)
        raise BadSchedule(f"{node.chosen} is not enabled after {at} steps, but was before: not deterministic")

    def end(self, outcome: ScheduleOutcome) -> None:
        if self._at and outcome.taken:
            self._path[self._at - 1].taken = outcome.taken[-1]
        if outcome.pruned:
            self.pruned += 1
        else:
            self.schedules += 1

    @abstractmethod
    def enter(self, node: ScheduleNode, before: ScheduleNode | None) -> bool:
        """Fill in ``todo`` and ``chosen`` of a new state. False if everything here is redundant."""

    def _next(self) -> bool:
        """Return to the last state with an action left to try, and choose it."""
        path = self._path
        while path:
            node = path[-1]
            assert node.taken is not None
            node.done[node.chosen] = node.taken.footprint or Footprint()
            left = [
                action.token
                for action in node.actions
                if action.token in node.todo and action.token not in node.done and action.token not in node.asleep
            ]
            if left:
                node.chosen = left[0]
                return True
            path.pop()
        return False
