"""Replay: the schedule of a text."""

from collections.abc import Iterable, Sequence

from emu.schedule.action import BadSchedule, ScheduleAction
from emu.schedule.run import Choice, ScheduleOutcome, Taken


class Replay:
    """Runs one schedule, token by token.

    ``strict``: BadSchedule if a token is not enabled, or if the actors are not done after the last one. Otherwise
    tokens that are not enabled are skipped, and after the end the last actor continues, then the first.
    """

    wants_footprints = False

    def __init__(self, tokens: Iterable[str], *, strict: bool = True) -> None:
        self._tokens, self._strict = list(tokens), strict
        self._at = 0
        self._begun = False

    def begin(self) -> bool:
        first, self._begun, self._at = not self._begun, True, 0
        return first

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        by_token = {action.token: action for action in actions}
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token in by_token:
                return Choice(by_token[token])
            if self._strict:
                enabled = ", ".join(by_token)
                raise BadSchedule(f"step {self._at} is {token}, but only {enabled} is enabled: of another version?")
        if self._strict:
            raise BadSchedule(f"the schedule ends after {self._at} steps, but {actions[0].token} is enabled")
        if last is not None:
            for action in actions:
                if action.token == last.action.token[0]:
                    return Choice(action)
        return Choice(actions[0])

    def end(self, outcome: ScheduleOutcome) -> None:
        if self._strict and self._at < len(self._tokens):
            raise BadSchedule(f"the schedule has {len(self._tokens)} steps, but all actors are done after {self._at}")
