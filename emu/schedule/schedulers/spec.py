"""Schedulers by name: ``dfs``, ``dfs:all``, ``bounded:2``, ``delays:2``, ``pct:3``, ``random``, ``urw`` and
``sticky:8``.
"""

from collections.abc import Callable
from typing import NamedTuple

from emu.errors import EmuError
from emu.schedule.run import Scheduler
from emu.schedule.schedulers.bounded import Bounded
from emu.schedule.schedulers.delays import DelayBounded
from emu.schedule.schedulers.dfs import Exhaustive
from emu.schedule.schedulers.pct import Pct
from emu.schedule.schedulers.random_walk import RandomWalk, sticky
from emu.schedule.schedulers.urw import UniformWalk


class _Kind(NamedTuple):
    text: str
    make: Callable[[str, int, int], Scheduler]
    """Builds a scheduler from the option, the seed and the number of the first schedule."""
    is_random: bool = True


_MADE: dict[str, _Kind] = {
    "dfs": _Kind(
        "every schedule, with partial-order reduction; dfs:all without",
        lambda option, seed, first: _exhaustive(option),
        is_random=False,
    ),
    "bounded": _Kind(
        "every schedule with at most N preemptions (default 2)",
        lambda option, seed, first: Bounded(int(option or 2)),
        is_random=False,
    ),
    "delays": _Kind(
        "every schedule with at most N delays (default 2)",
        lambda option, seed, first: DelayBounded(int(option or 2)),
        is_random=False,
    ),
    "pct": _Kind(
        "random priorities, depth N (default 3)",
        lambda option, seed, first: Pct(seed, int(option or 3), first=first),
    ),
    "random": _Kind("every enabled step equally likely", lambda option, seed, first: RandomWalk(seed, first=first)),
    "urw": _Kind(
        "every interleaving equally likely, by the steps that each actor has left",
        lambda option, seed, first: UniformWalk(seed, first=first),
    ),
    "sticky": _Kind(
        "the last actor is N times as likely (default 8)",
        lambda option, seed, first: RandomWalk(seed, weight=sticky(float(option or 8)), first=first),
    ),
}
SCHEDULERS = {name: kind.text for name, kind in _MADE.items()}
"""The schedulers, in words."""


def scheduler_for(spec: str, seed: int, *, first: int = 0) -> Scheduler:
    """Scheduler from a name with an option; ``first``: the number of its first schedule, for random schedulers.

    EmuError for an unknown name or a wrong option.
    """
    name, _, option = spec.partition(":")
    try:
        return _kind(name).make(option, seed, first)
    except ValueError:
        raise EmuError(f"{option!r} is not an option of the scheduler {name}") from None


def is_divisible(spec: str) -> bool:
    """True if any range of a scheduler's schedules can be run without those before it. EmuError."""
    return _kind(spec.partition(":")[0]).is_random


def _kind(name: str) -> _Kind:
    if name not in _MADE:
        raise EmuError(f"no scheduler {name!r}; there are {', '.join(_MADE)}")
    return _MADE[name]


def _exhaustive(option: str) -> Scheduler:
    if option not in ("", "all"):
        raise ValueError(option)
    return Exhaustive(reduce=not option)
