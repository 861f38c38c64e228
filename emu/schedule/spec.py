"""Schedulers by name: ``dfs``, ``dfs:all``, ``bounded:2``, ``pct:3``, ``random``, ``urw``, ``sticky:8``."""

from collections.abc import Callable

from emu.errors import EmuError
from emu.schedule.bounded import Bounded
from emu.schedule.dfs import Exhaustive
from emu.schedule.pct import Pct
from emu.schedule.random_walk import RandomWalk, sticky
from emu.schedule.run import Scheduler
from emu.schedule.urw import UniformWalk

_MADE: dict[str, tuple[str, Callable[[str, int], Scheduler]]] = {
    "dfs": ("every schedule, with partial-order reduction; dfs:all without", lambda option, _: _exhaustive(option)),
    "bounded": ("every schedule with at most N preemptions (default 2)", lambda option, _: Bounded(int(option or 2))),
    "pct": ("random priorities, depth N (default 3)", lambda option, seed: Pct(seed, int(option or 3))),
    "random": ("every enabled step alike", lambda option, seed: RandomWalk(seed)),
    "urw": ("every interleaving alike, by how many steps each has left", lambda option, seed: UniformWalk(seed)),
    "sticky": (
        "who went on last is N times as likely (default 8)",
        lambda option, seed: RandomWalk(seed, weight=sticky(float(option or 8))),
    ),
}
SCHEDULERS = {name: text for name, (text, _) in _MADE.items()}
"""What there is, in words."""


def scheduler_for(spec: str, seed: int) -> Scheduler:
    """A scheduler from its name and option. EmuError for one that there is not."""
    name, _, option = spec.partition(":")
    if name not in _MADE:
        raise EmuError(f"no scheduler {name!r}; there are {', '.join(_MADE)}")
    try:
        return _MADE[name][1](option, seed)
    except ValueError:
        raise EmuError(f"{option!r} is no option of the scheduler {name}") from None


def _exhaustive(option: str) -> Scheduler:
    if option not in ("", "all"):
        raise ValueError(option)
    return Exhaustive(reduce=not option)
