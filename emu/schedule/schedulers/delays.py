"""Every schedule with a limited number of delays (Emmi, Qadeer and Rakamaric, POPL 2011).

Without delays the order is round-robin: the last actor continues while it can, then the next one follows. A delay skips
the actor that is due. There are far fewer schedules with a few delays than with as many preemptions: after a
preemption any actor may continue, after a delay only the next one.
"""

from emu.schedule.schedulers.tree import DepthFirst, ScheduleNode


class DelayBounded(DepthFirst):
    """All schedules with at most ``delays`` of them. Choices of an actor do not count."""

    def __init__(self, delays: int = 2) -> None:
        super().__init__()
        if delays < 0:
            raise ValueError(f"{delays} delays: must not be negative")
        self._delays = delays

    def enter(self, node: ScheduleNode, before: ScheduleNode | None) -> bool:
        if before is not None:
            node.spent = before.spent + _costs(before)[before.action(before.chosen).actor]
        costs = _costs(node)
        left = self._delays - node.spent
        node.todo = {action.token for action in node.actions if costs[action.actor] <= left}
        node.chosen = next(action.token for action in node.actions if not costs[action.actor])
        return True


def _costs(node: ScheduleNode) -> dict[int, int]:
    """Number of delays needed to run each actor, by its index."""
    actors = sorted({action.actor for action in node.actions}, key=lambda actor: (actor < node.last_actor, actor))
    return {actor: position for position, actor in enumerate(actors)}
