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

_NEEDS_PADDING = "seed-v1"
_CONDITIONS = (("6.12", "voluntary"), ("7.2", "voluntary"), ("6.1", "voluntary"), ("6.12", "none"))
_SCHEDULERS = ("pct:3", "urw", "pct:3", "pct:4", "random")
_MOST_SEQUENCES, _MOST_STEPS, _MOST_SCHEDULES = 12, 50, 120
_FEWEST = 8
"""Schedules of a unit at least."""


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
        Unit(
            SEQUENCES,
            design,
            min(3 + number, _MOST_SEQUENCES),
            seed,
            steps=min(20 + 5 * number, _MOST_STEPS),
        )
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
    flavour, config = _CONDITIONS[number // 2 % len(_CONDITIONS)]
    tries = min(_FEWEST * (2 + number), _MOST_SCHEDULES)
    for position, scenario in enumerate(SCENARIOS):
        able = [one for one in designs if applies(scenario, one) and (one != _NEEDS_PADDING or flavour != "6.1")]
        if able:
            design = able[(position + number) % len(able)]
            scheduler = _SCHEDULERS[number % len(_SCHEDULERS)]
            yield Unit(
                SCHEDULES, design, tries, seed, scenario=scenario, flavour=flavour, config=config, scheduler=scheduler
            )


def _rotated(designs: Sequence[str], by: int) -> list[str]:
    at = by % len(designs)
    return [*designs[at:], *designs[:at]]
