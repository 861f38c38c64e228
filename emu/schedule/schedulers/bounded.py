"""Every schedule with a limited number of preemptions (CHESS: Musuvathi and Qadeer, PLDI 2007).

A preemption is a switch away from an actor that could continue. Few are enough for most bugs.
"""

from emu.schedule.schedulers.tree import DepthFirst, ScheduleNode


class Bounded(DepthFirst):
    """All schedules with at most ``preemptions`` of them."""

    def __init__(self, preemptions: int = 2) -> None:
        super().__init__()
        self._preemptions = preemptions

    def enter(self, node: ScheduleNode, before: ScheduleNode | None) -> bool:
        if before is not None:
            node.spent = before.spent + _is_preemption(before)
        stays = [action for action in node.actions if action.actor == node.last_actor]
        chosen = stays or node.actions
        node.todo = {action.token for action in chosen}
        if node.spent < self._preemptions:
            node.todo = {action.token for action in node.actions}
        node.chosen = chosen[0].token
        return True


def _is_preemption(node: ScheduleNode) -> bool:
    """True if the choice at a node switched away from an actor that could continue."""
    chosen = node.action(node.chosen).actor
    return chosen != node.last_actor and any(action.actor == node.last_actor for action in node.actions)
