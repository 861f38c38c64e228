"""Replay: the schedule that a text says."""

from collections.abc import Iterable, Sequence

from emu.schedule.action import BadSchedule, ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken


class Replay:
    """Makes one schedule, token by token.

    ``strict``: BadSchedule where a token is not enabled, or where the schedule is not over behind the last one.
    Otherwise what is not enabled is left out, and at the end whoever went on last goes on, then the first.
    """

    wants_footprints = False

    def __init__(self, tokens: Iterable[str], *, strict: bool = True) -> None:
        self._tokens, self._strict = list(tokens), strict
        self._at = 0
        self._begun = False

    def begin(self) -> bool:
        """See Scheduler."""
        first, self._begun, self._at = not self._begun, True, 0
        return first

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        """See Scheduler."""
        by_token = {action.token: action for action in actions}
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token in by_token:
                return Choice(by_token[token])
            if self._strict:
                enabled = ", ".join(by_token)
                raise BadSchedule(f"step {self._at} is {token}, and only {enabled} can go on: of another version?")
        if self._strict:
            raise BadSchedule(f"the schedule ends after {self._at} steps, and {actions[0].token} can go on")
        if last is not None:
            for action in actions:
                if action.token == last.action.token[0]:
                    return Choice(action)
        return Choice(actions[0])

    def end(self, outcome: ScheduleOutcome) -> None:
        """See Scheduler."""
        if self._strict and self._at < len(self._tokens):
            raise BadSchedule(f"the schedule has {len(self._tokens)} steps, and all are done after {self._at}")
