"""Actions: what can happen next, each with a token by which a schedule's text names it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from emu.errors import EmuError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GRACE_LETTER = "z"
"""The letter of grace periods; all others are given in order."""


class BadSchedule(EmuError):
    """A schedule's text that can't be read, or does not fit the scenario."""


@dataclass(frozen=True, slots=True)
class ScheduleAction:
    """One thing that an actor can do now. ``token``: the actor's letter, and a capital where it has a choice."""

    actor: int
    token: str
    what: str = ""
    """The choice in words; nothing for the actor's ordinary next step."""
    returns: bool = False
    """Whether a task comes back to a CPU in the midst of a call: when that is, is somebody else's doing."""


def encode(tokens: Iterable[str]) -> str:
    """The text of a schedule: tokens, a number behind one that comes several times in a row."""
    parts = []
    for token, run in groupby(tokens):
        count = sum(1 for _ in run)
        parts.append(token if count == 1 else f"{token}{count}")
    return "".join(parts)


_DIGITS = 6
_RUN = re.compile(r"([a-z][A-Z]?)(\d*)")


def decode(text: str) -> list[str]:
    """The tokens of a schedule's text. BadSchedule."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _RUN.match(text, at)
        if found is None:
            raise BadSchedule(f"{text[at:at + 8]!r} is no step of a schedule")
        count = int(found[2] or 1) if len(found[2]) <= _DIGITS else 0
        if not 0 < count <= 10**_DIGITS - len(tokens):
            raise BadSchedule(f"{found[0]!r}: a schedule has at most {10**_DIGITS} steps, and no stretch of none")
        tokens += [found[1]] * count
        at = found.end()
    return tokens


def switches(tokens: Sequence[str]) -> int:
    """How often another actor goes on than the one before."""
    return sum(before[0] != after[0] for before, after in pairwise(tokens))
