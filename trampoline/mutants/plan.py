"""In which order a hunt tries things: the same for every mutant, which nobody says anything about.

Rounds, the first ones quick: each looks at every design and at every scenario, at a scenario in another design each
time, so that what is common to designs is seen at once and what is one design's own a little later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trampoline.designs import DESIGNS
from trampoline.explore.scenarios import SCENARIOS, applies

SEQUENCES, SCHEDULES = "sequences", "schedules"
"""The two tools."""
AS_POSTED = "seed-v2"
"""The design with defects of its own: no hunt looks at it."""
HUNTED = tuple(name for name in DESIGNS if name != AS_POSTED)

_WITH_METADATA = ("seed-v2-repaired", "seed-v1")
_NEEDS_PADDING = "seed-v1"
_PREEMPTIBLE = ("tramplab",)
"""Designs whose programs outlive a task that is preempted on the way to them (docs/schedules.md)."""
_CONDITIONS = (("6.12", "voluntary"), ("7.2", "lazy"), ("7.2", "voluntary"), ("6.1", "voluntary"), ("6.12", "none"))
_NOT_PREEMPTIBLE = tuple(condition for condition in _CONDITIONS if condition[1] != "lazy")
_SCHEDULERS = ("pct:3", "urw", "pct:3", "pct:4", "random")
_MOST_SEQUENCES, _MOST_STEPS, _MOST_SCHEDULES = 12, 50, 120
_FEWEST = 8
"""Schedules of a unit at least."""
_FIRST = (
    "detach-while-sleeping",
    "detach-during-call",
    "failures-on-the-way",
    "livepatch-comes-and-goes",
    "detach-while-program-sleeps",
    "batch-patching",
    "livepatch-meets-modify",
    "resize-during-lookup",
    "tracer-comes-and-goes",
)
"""Scenarios in which most happens; the others follow in their own order."""
_LONG = {"failures-on-the-way": 8}
"""Scenarios whose schedules take so many times as long as others'."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a hunt: so many tries of one tool on one design."""

    tool: str
    design: str
    tries: int
    seed: int
    steps: int = 0
    """Of a sequence at most."""
    scenario: str = ""
    flavour: str = ""
    config: str = ""
    scheduler: str = ""

    @property
    def subject(self) -> str:
        """What it looks at, in words."""
        return f"{self.scenario} on {self.design}" if self.scenario else self.design


def plan(seed: int, designs: Sequence[str] = HUNTED) -> Iterator[Unit]:
    """The units of a hunt, without end."""
    number = 0
    while True:
        yield from _round(number, 1000 * seed + number, designs)
        number += 1


def _round(number: int, seed: int, designs: Sequence[str]) -> Iterator[Unit]:
    sequences = [
        Unit(SEQUENCES, design, min(4 + number, _MOST_SEQUENCES), seed, min(20 + 5 * number, _MOST_STEPS))
        for design in _rotated(designs, number)
    ]
    schedules = list(_schedules(number, seed, designs))
    # Both tools in turn, each in its own order.
    share = len(schedules) / len(sequences)
    done = 0
    for position, unit in enumerate(sequences, 1):
        yield unit
        until = round(position * share)
        yield from schedules[done:until]
        done = until


def _schedules(number: int, seed: int, designs: Sequence[str]) -> Iterator[Unit]:
    """Each scenario on one design with trampolines and on one with metadata, another one in each round."""
    tries = min(_FEWEST * (2 + number), _MOST_SCHEDULES)
    scheduler = _SCHEDULERS[number % len(_SCHEDULERS)]
    with_trampolines = [one for one in designs if one not in _WITH_METADATA]
    with_metadata = [one for one in designs if one in _WITH_METADATA]
    groups = (
        (with_trampolines, _CONDITIONS[number % len(_CONDITIONS)]),
        (with_metadata, _NOT_PREEMPTIBLE[number // len(_WITH_METADATA) % len(_NOT_PREEMPTIBLE)]),
    )
    for position, scenario in enumerate(dict.fromkeys((*_FIRST, *SCENARIOS))):
        for group, (flavour, config) in groups:
            able = [one for one in group if _works(scenario, one, flavour, config)]
            if able:
                design = able[(position + number) % len(able)]
                some = max(tries // _LONG.get(scenario, 1), 1)
                yield Unit(SCHEDULES, design, some, seed, 0, scenario, flavour, config, scheduler)


def _works(scenario: str, design: str, flavour: str, config: str) -> bool:
    """Whether the design has what the scenario is about, and keeps what it promises under these conditions."""
    if design == _NEEDS_PADDING and flavour == "6.1":
        return False
    return applies(scenario, design) and (config != "lazy" or design in _PREEMPTIBLE)


def _rotated(designs: Sequence[str], by: int) -> list[str]:
    at = by % len(designs)
    return [*designs[at:], *designs[:at]]
