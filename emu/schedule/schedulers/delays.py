"""Every schedule with at most so many delays (Emmi, Qadeer and Rakamaric, POPL 2011).

A fixed order says who goes on: whoever went on last while it can, then the next one behind it, round and round. A delay
passes over whoever is due. There are far fewer schedules with a few delays than with as many preemptions: where a
preemption may let any other go on, a delay lets the next one.
"""

from emu.schedule.schedulers.tree import DepthFirst, ScheduleNode


class DelayBounded(DepthFirst):
    """All schedules with ``delays`` of them at most. What an actor has a choice of costs none."""

    def __init__(self, delays: int = 2) -> None:
        super().__init__()
        if delays < 0:
            raise ValueError(f"{delays} delays")
        self._delays = delays

    def enter(self, node: ScheduleNode, before: ScheduleNode | None) -> bool:
        """See DepthFirst."""
        if before is not None:
            node.spent = before.spent + _costs(before)[before.action(before.chosen).actor]
        costs = _costs(node)
        left = self._delays - node.spent
        node.todo = {action.token for action in node.actions if costs[action.actor] <= left}
        node.chosen = next(action.token for action in node.actions if not costs[action.actor])
        return True


def _costs(node: ScheduleNode) -> dict[int, int]:
    """How many delays it takes until an actor is the one that is due, by its index."""
    actors = sorted({action.actor for action in node.actions}, key=lambda actor: (actor < node.last_actor, actor))
    return {actor: position for position, actor in enumerate(actors)}
