"""Differences between paths and their baseline, and the verdict on them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trampoline.tools.icount.baseline import BaselineEntry
from trampoline.tools.icount.counted_path import CountedPath
from trampoline.tools.icount.limits import Limits


class CountVerdict(StrEnum):
    """Verdict of a comparison."""

    EQUAL = "equal"
    MOVED = "as many instructions, in other phases"
    WITHIN_SOFT = "within its soft limit"
    BEYOND_SOFT = "beyond its soft limit"
    LONGER = "longer"
    """Beyond the hard limit."""
    SHORTER = "shorter"
    """Beyond the hard limit."""
    UNBALANCED = "other unbalanced returns"
    """A different number of unbalanced returns; no limit applies to it."""


_FAILURES = {CountVerdict.LONGER, CountVerdict.SHORTER, CountVerdict.UNBALANCED}


@dataclass(frozen=True, slots=True)
class Finding:
    """Comparison of one path with its baseline."""

    name: str
    old: BaselineEntry
    new: CountedPath
    limits: Limits
    verdict: CountVerdict

    @property
    def difference(self) -> int:
        """Instructions in excess of the baseline."""
        return self.new.instructions - self.old.instructions

    @property
    def fails(self) -> bool:
        """True for a failure: beyond the hard limit, or with other unbalanced returns."""
        return self.verdict in _FAILURES

    @property
    def warns(self) -> bool:
        """True for a warning: beyond the soft limit."""
        return self.verdict is CountVerdict.BEYOND_SOFT

    @property
    def words(self) -> str:
        """The verdict in words: ``shorter``, ``longer, beyond its soft limit``."""
        if self.verdict in (CountVerdict.WITHIN_SOFT, CountVerdict.BEYOND_SOFT):
            return f"{'longer' if self.difference > 0 else 'shorter'}, {self.verdict}"
        return str(self.verdict)


def compare(name: str, old: BaselineEntry, new: CountedPath, limits: Limits | None = None) -> Finding:
    """Compare a path with its baseline, under given limits or those that the baseline states."""
    limits = old.limits if limits is None else limits
    return Finding(name, old, new, limits, _verdict(old, new, limits))


def _verdict(old: BaselineEntry, new: CountedPath, limits: Limits) -> CountVerdict:
    known = old.path
    if not limits.hard.allows(old.instructions, new.instructions):
        return CountVerdict.LONGER if new.instructions > old.instructions else CountVerdict.SHORTER
    if known is not None and known.unbalanced_returns != new.unbalanced_returns:
        return CountVerdict.UNBALANCED
    if new.instructions != old.instructions:
        within = limits.soft.allows(old.instructions, new.instructions)
        return CountVerdict.WITHIN_SOFT if within else CountVerdict.BEYOND_SOFT
    if known is not None and known.instructions == old.instructions and _phases(known) != _phases(new):
        return CountVerdict.MOVED
    return CountVerdict.EQUAL


def _phases(path: CountedPath) -> dict[str, int]:
    return {name: phase.instructions for name, phase in path.phases.items() if phase.instructions}


def other_conditions(old: BaselineEntry, new: CountedPath) -> list[str]:
    """Conditions that differ from the baseline's, in words: ``flavour 6.12, not 7.2``."""
    if old.path is None:
        return []
    known = old.path.conditions
    others = ((key, value) for key, value in new.conditions.items() if known.get(key, value) != value)
    return [f"{key} {known[key]}, not {value}" for key, value in others]


@dataclass(slots=True)
class CountReport:
    """Comparison of all paths of a run with their baseline.

    ``missing``: counted, but not in the baseline. ``stale``: in the baseline, but not counted. ``foreign``: counted
    under other conditions, which are listed by name.
    """

    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    foreign: dict[str, list[str]] = field(default_factory=dict)

    @property
    def failures(self) -> list[Finding]:
        """Findings that are failures."""
        return [finding for finding in self.findings if finding.fails]

    @property
    def differing(self) -> list[Finding]:
        """Findings that are not equal."""
        return [finding for finding in self.findings if finding.verdict is not CountVerdict.EQUAL]


def compare_all(
    entries: Mapping[str, BaselineEntry],
    paths: Mapping[str, CountedPath],
    limits: Limits | None = None,
    *,
    partial: bool = False,
) -> CountReport:
    """Compare many paths with a baseline; ``partial``: names that were not counted are not stale."""
    report = CountReport(stale=[] if partial else sorted(set(entries) - set(paths)))
    for name in sorted(paths):
        old, new = entries.get(name), paths[name]
        if old is None:
            report.missing.append(name)
        elif others := other_conditions(old, new):
            report.foreign[name] = others
        else:
            report.findings.append(compare(name, old, new, limits))
    return report


def changed_phases(finding: Finding) -> list[str]:
    """Phases with another number of instructions or, if there are none, those with other code."""
    old = {} if finding.old.path is None else finding.old.path.phases
    new = finding.new.phases
    names: Iterable[str] = [*new, *(name for name in old if name not in new)]
    numbers = [
        name
        for name in names
        if (old[name].instructions if name in old else 0) != (new[name].instructions if name in new else 0)
    ]
    if numbers or not old:
        return numbers if old else []
    return [name for name in names if name not in old or name not in new or old[name].pieces != new[name].pieces]


@dataclass(frozen=True, slots=True)
class BaselineUpdate:
    """Changes of a rewritten baseline: names with the old and the new number, None for a missing one.

    ``same_number``: names of which only the header changes.
    """

    changed: Mapping[str, tuple[int | None, int | None]]
    same_number: tuple[str, ...]

    def lines(self) -> list[str]:
        """One line for each name."""
        return [
            *(f"{name}: {_change(old, new)}" for name, (old, new) in self.changed.items()),
            *(f"{name}: the same number, other phases, code, limits or kernel" for name in self.same_number),
        ]

    def __bool__(self) -> bool:
        return bool(self.changed or self.same_number)


def update_of(old: Mapping[str, BaselineEntry], new: Mapping[str, tuple[CountedPath, Limits]]) -> BaselineUpdate:
    """Differences between the paths of a baseline and their replacement."""
    changed: dict[str, tuple[int | None, int | None]] = {}
    same: list[str] = []
    for name in sorted({*old, *new}):
        before = old[name].instructions if name in old else None
        after = new[name][0].instructions if name in new else None
        if before != after:
            changed[name] = before, after
        elif name in old and (old[name].path, old[name].limits) != new[name]:
            same.append(name)
    return BaselineUpdate(changed, tuple(same))


def _change(old: int | None, new: int | None) -> str:
    if old is None:
        return f"new, {new}"
    return f"gone, {old} before" if new is None else f"{old} -> {new} ({new - old:+d})"
