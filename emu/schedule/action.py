"""Actions: possible next steps of a schedule, each with a token that names it in the schedule's text."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from emu.errors import EmuError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GRACE_LETTER = "z"
"""The letter of grace periods; other letters are assigned in order."""


class BadSchedule(EmuError):
    """A schedule's text that can't be parsed, or does not fit the scenario."""


@dataclass(frozen=True, slots=True)
class ScheduleAction:
    """A possible next step of an actor. ``token``: the actor's letter, and a capital for a choice."""

    actor: int
    token: str
    what: str = ""
    """The choice in words; empty for the actor's ordinary next step."""
    returns: bool = False
    """True if a task returns to a CPU in the middle of a call: other parts of the kernel decide when."""


def encode(tokens: Iterable[str]) -> str:
    """Text of a schedule: tokens, each followed by a number if it is repeated."""
    parts = []
    for token, run in groupby(tokens):
        count = sum(1 for _ in run)
        parts.append(token if count == 1 else f"{token}{count}")
    return "".join(parts)


_DIGITS = 6
_RUN = re.compile(r"([a-z][A-Z]?)(\d*)")


def decode(text: str) -> list[str]:
    """Tokens of a schedule's text. BadSchedule."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _RUN.match(text, at)
        if found is None:
            raise BadSchedule(f"{text[at:at + 8]!r} is not a step of a schedule")
        count = int(found[2] or 1) if len(found[2]) <= _DIGITS else 0
        if not 0 < count <= 10**_DIGITS - len(tokens):
            raise BadSchedule(f"{found[0]!r}: a schedule has at most {10**_DIGITS} steps, and no repetition of 0")
        tokens += [found[1]] * count
        at = found.end()
    return tokens


def switches(tokens: Sequence[str]) -> int:
    """Number of switches from one actor to another."""
    return sum(before[0] != after[0] for before, after in pairwise(tokens))
