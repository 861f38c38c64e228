"""Search order of a mutant campaign; does not depend on the mutant.

The plan has rounds, of which the first are short. Each round covers every design and every scenario, a scenario on
another design each time: a bug common to all designs is found early, one of a single design somewhat later.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trampoline.designs import DESIGNS, DesignInfo
from trampoline.releases import release
from trampoline.tools.explore.scenarios import SCENARIOS, applies

SEQUENCES, SCHEDULES = "sequences", "schedules"
"""The two tools."""
HUNTED = tuple(name for name, info in DESIGNS.items() if info.sound)
"""The designs without known defects; campaigns only use these."""

_CONDITIONS = (("6.12", "voluntary"), ("7.2", "voluntary"), ("6.1", "voluntary"), ("6.12", "none"))
_PREEMPTED = tuple(condition for one in _CONDITIONS for condition in (("7.2", "lazy"), one))
_SCHEDULERS = ("pct:3", "pct:3", "urw", "pct:4", "random")
_MOST_SEQUENCES, _MOST_STEPS, _MOST_SCHEDULES = 12, 50, 120
_FEWEST = 8
"""Schedules that are added to a unit in each round; doubled in the first rounds, in which every scenario meets every
design.
"""
_FIRST_ROUNDS = 3
_FIRST = (
    "detach-while-sleeping",
    "detach-during-call",
    "failures-on-the-way",
    "livepatch-comes-and-goes",
    "detach-while-program-sleeps",
    "tracer-comes-and-goes",
    "batch-patching",
    "livepatch-meets-modify",
    "resize-during-lookup",
    "cookies-change",
    "tracer-stays",
    "statistics-meet-attach",
)
"""Scenarios with the most activity; the others follow in their own order."""
_LONG = {"failures-on-the-way": 4}
"""Scenarios whose schedules take longer than others', by their factor."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of a campaign: a number of tries of one tool on one design."""

    tool: str
    design: str
    tries: int
    seed: int
    steps: int = 0
    """Largest number of steps in a sequence."""
    scenario: str = ""
    flavour: str = ""
    config: str = ""
    scheduler: str = ""

    @property
    def subject(self) -> str:
        """Scenario and design of the unit, in words."""
        return f"{self.scenario} on {self.design}" if self.scenario else self.design

    @property
    def conditions(self) -> str:
        """Conditions of the unit, in words."""
        if self.scenario:
            return f"kernel {self.flavour}, {self.config}, scheduler {self.scheduler}, seed {self.seed}"
        return f"{self.tries} sequences of {self.steps} steps at most, seed {self.seed}"


def plan(seed: int, designs: Sequence[str] = HUNTED) -> Iterator[Unit]:
    """The units of a campaign, without end."""
    number = 0
    while True:
        yield from _round(number, 1000 * seed + number, designs)
        number += 1


def _round(number: int, seed: int, designs: Sequence[str]) -> Iterator[Unit]:
    sequences = [
        Unit(SEQUENCES, design, min(4 + number, _MOST_SEQUENCES), seed, min(20 + 20 * number, _MOST_STEPS))
        for design in _rotated(designs, number)
    ]
    schedules = list(_schedules(number, seed, designs))
    # The two tools alternate, each in its own order.
    share = len(schedules) / len(sequences)
    done = 0
    for position, unit in enumerate(sequences, 1):
        yield unit
        until = round(position * share)
        yield from schedules[done:until]
        done = until


def _schedules(number: int, seed: int, designs: Sequence[str]) -> Iterator[Unit]:
    """Each scenario on one design of each kind, a different one in each round."""
    tries = min(_FEWEST * (2 + max(number - _FIRST_ROUNDS + 1, 0)), _MOST_SCHEDULES)
    scheduler = _SCHEDULERS[number % len(_SCHEDULERS)]

    def sort(takes: Callable[[DesignInfo], bool]) -> list[str]:
        return [one for one in designs if takes(DESIGNS[one])]

    sorts = (
        (sort(lambda info: not info.meets_preempted and info.links == "any"), _CONDITIONS),
        (sort(lambda info: info.meets_preempted), _PREEMPTED),
        (sort(lambda info: info.links == "multi"), _CONDITIONS),
    )
    for position, scenario in enumerate(dict.fromkeys((*_FIRST, *SCENARIOS))):
        units = []
        for names, conditions in sorts:
            # Each design meets each condition: both advance with each round, at different rates.
            turn = number + number // len(conditions) if len(names) > 1 else number
            flavour, config = conditions[number % len(conditions)]
            if able := [made for one in names if (made := _able(scenario, one, flavour))]:
                design = able[(position + turn) % len(able)]
                units.append(Unit(SCHEDULES, design, 0, seed, 0, scenario, flavour, config, scheduler))
        # A scenario that does not apply to every kind of design has as many schedules as others.
        share = tries * len(sorts) // (max(len(units), 1) * _LONG.get(scenario, 1))
        yield from (replace(unit, tries=max(share, 1)) for unit in units)


def _able(scenario: str, design: str, flavour: str) -> str:
    """The design, or the form of it, that supports the scenario on a release; empty if none does."""
    info = DESIGNS[design]
    if info.traits is not None and not info.traits.runs_on(release(flavour).trampoline):
        return ""
    forms = (design, *(f"{design}+{metadata}" for metadata in info.metadata or ()))
    return next((form for form in forms if applies(scenario, form)), "")


def _rotated(designs: Sequence[str], by: int) -> list[str]:
    at = by % len(designs)
    return [*designs[at:], *designs[:at]]
