"""Minimisation of a schedule with a violation: fewest actors, then fewest switches, then fewest steps.

Delta debugging on the stretches of steps of one actor: stretches are removed, or moved to the actor's next or last one,
and the rest is run leniently: tokens that are not enabled are skipped, and after the end the last actor continues. The
result is a schedule that needs no leniency.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from emu.schedule.action import switches
from emu.schedule.run import ScheduleOutcome, Scheduler
from emu.schedule.schedulers.replay import Replay

Run = Callable[[Scheduler], ScheduleOutcome]


@dataclass(slots=True)
class Shrunk:
    """The smallest schedule found, and the number of runs."""

    outcome: ScheduleOutcome
    runs: int


def shrink(run: Run, outcome: ScheduleOutcome, *, most: int = 600) -> Shrunk:
    """A smaller schedule with a violation of the same kind, else ``outcome`` itself. ``most``: runs."""
    assert outcome.violation is not None
    return _Shrinking(run, outcome, most).result()


class _Shrinking:
    def __init__(self, run: Run, outcome: ScheduleOutcome, most: int) -> None:
        assert outcome.violation is not None
        self._run, self._best, self._most = run, outcome, most
        self._kind = outcome.violation.kind
        self._tried: set[tuple[str, ...]] = set()
        self.runs = 0

    def result(self) -> Shrunk:
        while self._pass():
            pass
        return Shrunk(self._best, self.runs)

    def _pass(self) -> bool:
        """One pass over all reductions; True if one succeeded."""
        return any(attempt() for attempt in (self._drop_stretches, self._merge_stretches, self._plain, self._shorten))

    def _drop_stretches(self) -> bool:
        """Remove a part of the stretches: half of them, a quarter, ..., each single one."""
        before = self._best
        size = max(len(_stretches(before.tokens)) // 2, 1)
        while size:
            at = 0
            while at < len(parts := _stretches(self._best.tokens)):
                if not self._smaller(parts[:at] + parts[at + size :]):
                    at += size
            size //= 2
        return self._best is not before

    def _merge_stretches(self) -> bool:
        """Move a stretch to the next, or the last, of its actor."""
        parts = _stretches(self._best.tokens)
        for at, part in enumerate(parts):
            actor = part[0][0]
            rest = parts[:at] + parts[at + 1 :]
            later = next((i for i in range(at, len(rest)) if rest[i][0][0] == actor), None)
            earlier = next((i for i in range(at - 1, -1, -1) if rest[i][0][0] == actor), None)
            for place in (later, earlier):
                if place is None:
                    continue
                joined = part + rest[place] if place == later else rest[place] + part
                if self._smaller([*rest[:place], joined, *rest[place + 1 :]]):
                    return True
        return False

    def _plain(self) -> bool:
        """Remove a choice of an actor."""
        tokens = self._best.tokens
        return any(
            self._smaller([[*tokens[:at], token[0], *tokens[at + 1 :]]])
            for at, token in enumerate(tokens)
            if len(token) > 1
        )

    def _shorten(self) -> bool:
        """Move a stretch's last steps later, or its first ones earlier: half of them, a quarter, ..."""
        parts = _stretches(self._best.tokens)
        for at, part in enumerate(parts):
            size = len(part) // 2
            while size:
                if self._smaller([*parts[:at], part[:-size], *parts[at + 1 :]]):
                    return True
                size //= 2
        return False

    def _smaller(self, parts: Sequence[Sequence[str]]) -> bool:
        tokens = tuple(token for part in parts for token in part)
        if tokens in self._tried or self.runs >= self._most:
            return False
        self._tried.add(tokens)
        self.runs += 1
        found = self._run(Replay(tokens, strict=False))
        if found.violation is None or found.violation.kind != self._kind or _size(found) >= _size(self._best):
            return False
        self._best = found
        return True


def _stretches(tokens: Sequence[str]) -> list[list[str]]:
    return [list(part) for _, part in groupby(tokens, key=lambda token: token[0])]


def _size(outcome: ScheduleOutcome) -> tuple[int, int, int, int]:
    tokens = outcome.tokens
    return len({token[0] for token in tokens}), switches(tokens), len(tokens), sum(map(len, tokens))
