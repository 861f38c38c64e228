"""Every schedule, depth first, with partial-order reduction.

Dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005) with sleep sets (Godefroid 1996): of schedules that
differ only in the order of independent steps, one is run. Steps depend on each other if they are one actor's, or if
their footprints conflict; the fetch of an instruction that may be patched is a read of it.
"""

from emu.schedule.footprint import Footprint
from emu.schedule.run import ScheduleOutcome, Taken
from emu.schedule.schedulers.tree import DepthFirst, ScheduleNode

Clock = dict[int, int]


class Exhaustive(DepthFirst):
    """All schedules; ``reduce`` False: without reduction."""

    def __init__(self, *, reduce: bool = True) -> None:
        super().__init__()
        self._reduce = reduce
        self.wants_footprints = reduce

    def enter(self, node: ScheduleNode, before: ScheduleNode | None) -> bool:
        if not self._reduce:
            node.todo = {action.token for action in node.actions}
            node.chosen = node.actions[0].token
            return True
        if before is not None:
            taken, step = _made(before)
            actor = taken.action.actor
            for token, footprint in {**before.asleep, **before.done}.items():
                other = before.action(token).actor
                if other != actor and not footprint.depends(step):
                    node.asleep[token] = footprint
        awake = [action for action in node.actions if action.token not in node.asleep]
        if not awake:
            return False
        chosen = next((action for action in awake if action.actor == node.last_actor), awake[0])
        node.chosen = chosen.token
        node.todo = {action.token for action in node.actions if action.actor == chosen.actor}
        return True

    def end(self, outcome: ScheduleOutcome) -> None:
        super().end(outcome)
        if self._reduce:
            self._find_races()

    def _find_races(self) -> None:
        """Schedule the other order of two dependent steps that nothing orders."""
        path = self._path[: self._at]
        clocks: list[Clock] = []
        latest: dict[int, int] = {}
        for position, node in enumerate(path):
            taken, footprint = _made(node)
            actor = taken.action.actor
            clock: Clock = dict(clocks[latest[actor]]) if actor in latest else {}
            for earlier in range(position - 1, -1, -1):
                other, touched = _made(path[earlier])
                if clock.get(other.action.actor, -1) >= earlier:
                    continue
                if other.action.actor == actor or not touched.depends(footprint):
                    continue
                self._try_before(path, earlier, position, actor, clock, clocks)
                for who, when in clocks[earlier].items():
                    clock[who] = max(clock.get(who, -1), when)
            clock[actor] = position
            clocks.append(clock)
            latest[actor] = position

    def _try_before(
        self, path: list[ScheduleNode], earlier: int, position: int, actor: int, clock: Clock, clocks: list[Clock]
    ) -> None:
        """Run ``actor``, or an actor that must precede it, in the state before step ``earlier``."""
        node = path[earlier]
        enabled = {action.actor for action in node.actions}
        wanted = actor
        if actor not in enabled:
            first = next(
                (
                    other
                    for step in range(earlier + 1, position)
                    if (other := _made(path[step])[0].action.actor) in enabled and clock.get(other, -1) >= step
                ),
                None,
            )
            if first is None:
                node.todo.update(action.token for action in node.actions)
                return
            wanted = first
        node.todo.update(action.token for action in node.actions if action.actor == wanted)


def _made(node: ScheduleNode) -> tuple[Taken, Footprint]:
    """The step made in a state, and its footprint."""
    taken = node.taken
    assert taken is not None
    assert taken.footprint is not None
    return taken, taken.footprint
