"""Correlation of instruction counts with the speeds published with the tracing-multi series.

The ranks of two columns are correlated (Spearman), without an assumption about a CPU's speed. A second model also
charges each mispredicted return.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trampoline.bpf.errors import KernelError
from trampoline.tools.bench.bench import ROWS, measure
from trampoline.tools.bench.reference_figures import PUBLISHED, PublishedPath

CONFIG = "voluntary"
"""Kernel configuration in which the other paths were counted."""
NR_ARGS = {"fmodret": 1, "fmodret-multi": 1}
"""Argument slots of the function that the published bench calls, if they differ from the others'."""
BENCH_ARGS = 5
MISPREDICTED_NS = 8.0
"""Approximate cost of a mispredicted return: measured with sites that jump and sites that call."""

_ENTRY_SIDE = frozenset(
    ("kernel-count", "fentry", "fentry-multi", "fentry-multi-all", "rawtp", "tp", "kprobe", "kprobe-multi")
)


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A line of the table: published speed in millions of calls a second, and its counts.

    ``design``: None for a path that cannot be run here. ``unbalanced_returns`` and ``instructions`` are None if they
    were not counted. ``charged``: instructions plus the charge for unbalanced returns.
    """

    name: str
    mps: float
    instructions: int | None
    unbalanced_returns: int | None
    charged: float | None
    design: str | None
    nr_args: int | None


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """``ranks`` and ``charged_ranks``: correlation of time with instructions, and with charged ones, over ``all``
    paths, the ``entry`` side and the ``trampolines``. ``charge``: instructions charged for an unbalanced return.
    """

    flavour: str
    config: str
    charge: float
    paths: tuple[PublishedRow, ...]
    ranks: dict[str, float]
    charged_ranks: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return asdict(self)


def compare(*, design: str = "tracing-multi-v2", flavour: str = "6.12") -> SpeedComparison:
    """Count the paths that can be run here and rank all of them; a row that the design refuses has no instructions.

    ``design``: of the multi rows. Raises TrampolineError for an unknown design or flavour.
    """
    counted = [_count(path, design if "-" in path.name else "per-function", flavour) for path in PUBLISHED]
    charge = MISPREDICTED_NS / _ns_per_instruction(counted)
    paths = tuple(_charged(path, charge) for path in counted)
    known = [path for path in paths if path.instructions is not None]
    groups = {
        "all": known,
        "entry": [path for path in known if path.name in _ENTRY_SIDE],
        "trampolines": [path for path in known if path.name in ROWS],
    }
    return SpeedComparison(
        flavour,
        CONFIG,
        round(charge, 1),
        paths,
        {name: _rank(group, [path.instructions or 0 for path in group]) for name, group in groups.items()},
        {name: _rank(group, [path.charged or 0 for path in group]) for name, group in groups.items()},
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation of two columns, 1.0 for the same order; equal values share their mean rank.

    Raises ValueError for fewer than two values, columns of different length, or a constant column.
    """
    try:
        return statistics.correlation(_ranks(one), _ranks(other))
    except statistics.StatisticsError as error:
        raise ValueError(str(error)) from error


def _ranks(values: Sequence[float]) -> list[float]:
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for rank, value in enumerate(sorted(values), start=1):
        first.setdefault(value, rank)
        last[value] = rank
    return [(first[value] + last[value]) / 2 for value in values]


def _rank(paths: Sequence[PublishedRow], cost: Sequence[float]) -> float:
    return round(spearman(cost, [1 / path.mps for path in paths]), 3)


def _count(published: PublishedPath, design: str, flavour: str) -> PublishedRow:
    name = published.name
    if name not in ROWS:
        # A path with an ordinary call and return has none; kretprobes were not counted.
        unbalanced = 0 if name in _ENTRY_SIDE else None
        return PublishedRow(name, published.mps, published.instructions, unbalanced, None, None, None)
    nr_args = NR_ARGS.get(name, BENCH_ARGS)
    try:
        row = measure(name, flavour=flavour, config=CONFIG, design=design, nr_args=nr_args)
    except KernelError:
        return PublishedRow(name, published.mps, None, None, None, design, nr_args)
    return PublishedRow(name, published.mps, row.instructions, row.unbalanced_returns, None, design, nr_args)


def _ns_per_instruction(paths: Sequence[PublishedRow]) -> float:
    """Slope of time over instructions, on the paths whose returns are all predicted."""
    straight = [path for path in paths if path.instructions is not None and path.name in _ENTRY_SIDE]
    return statistics.linear_regression(
        [path.instructions or 0 for path in straight], [1000 / path.mps for path in straight]
    ).slope


def _charged(path: PublishedRow, charge: float) -> PublishedRow:
    if path.instructions is None:
        return path
    return replace(path, charged=round(path.instructions + charge * (path.unbalanced_returns or 0), 1))
