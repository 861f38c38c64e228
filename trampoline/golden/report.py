"""Compare golden files as a whole: totals for each kind, and every difference."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from asm import AsmError
from emu.errors import EmuError
from trampoline.errors import TrampolineError
from trampoline.golden.case import Case, read_cases
from trampoline.golden.images import Difference, compare_image
from trampoline.golden.replay import ReplayKernel

TRAMPOLINE = "bpf_trampoline"


@dataclass(slots=True)
class Totals:
    """How many were compared, how many of those agree, how many were left out."""

    total: int = 0
    identical: int = 0
    skipped: int = 0

    def count(self, *, agrees: bool) -> None:
        """One more that was compared."""
        self.total += 1
        self.identical += agrees

    def add(self, other: "Totals") -> None:
        """Take in the totals of another report."""
        self.total += other.total
        self.identical += other.identical
        self.skipped += other.skipped


@dataclass(slots=True)
class Report:
    """``images``: one each; ``sites``: one target at one moment; ``replay``: one live or attached case."""

    images: Totals = field(default_factory=Totals)
    sites: Totals = field(default_factory=Totals)
    replay: Totals = field(default_factory=Totals)
    mismatches: list[Difference] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Take in another report."""
        self.images.add(other.images)
        self.sites.add(other.sites)
        self.replay.add(other.replay)
        self.mismatches += other.mismatches

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


class Comparison:
    """Compares cases; kernels are booted once for each recorded boot."""

    def __init__(self) -> None:
        self._run = ""
        self._kernel: ReplayKernel | None = None
        self._last_replay: list[Difference] = []

    def check(self, case: Case) -> Report:
        """Everything that one case holds."""
        report = Report()
        for image in case.images:
            if image.kind == TRAMPOLINE:
                differences = self._guarded(case, "image", lambda image=image: list(compare_image(case, image)))
                report.images.count(agrees=not differences)
                report.mismatches += differences
        moments = sum(2 + len(target.steps) + (target.site_detached is not None) for target in case.targets)
        replayed = case.status in ("live", "attached")
        if case.shares_site:
            report.sites.skipped, report.replay.skipped = moments, int(replayed)
            return report
        self._replay(case, report, moments, replayed=replayed)
        return report

    def close(self) -> None:
        """Give the last kernel back."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def _replay(self, case: Case, report: Report, moments: int, *, replayed: bool) -> None:
        if case.run != self._run or self._kernel is None:
            self.close()
            self._kernel, self._run = ReplayKernel(case), case.run
        kernel = self._kernel
        sites: list[Difference] = []
        failed = self._guarded(case, "replay", lambda: self._collect(kernel, case, sites, report))
        report.sites.total += moments
        report.sites.identical += 0 if failed else moments - len(sites)
        if replayed:
            report.replay.count(agrees=not failed and not self._last_replay)
        report.mismatches += sites + self._last_replay + failed
        if failed:
            self.close()

    def _collect(self, kernel: ReplayKernel, case: Case, sites: list[Difference], report: Report) -> list[Difference]:
        outcome = kernel.replay(case)
        sites += outcome.site_differences
        self._last_replay = outcome.replay_differences
        return []

    def _guarded(self, case: Case, what: str, compare: Any) -> list[Difference]:
        """What ``compare`` gives; an error of ours is a difference of this case, not the end of the run."""
        self._last_replay = []
        try:
            return list(compare())
        except (TrampolineError, EmuError, AsmError) as error:
            return [Difference(case.id, what, -1, "as recorded", f"{type(error).__name__}: {error}")]


def compare_files(paths: Iterable[Path]) -> Report:
    """Compare every case of some golden files. Raises GoldenError for a damaged or foreign file."""
    report = Report()
    for path in paths:
        comparison = Comparison()
        try:
            for case in read_cases(path):
                report.add(comparison.check(case))
        finally:
            comparison.close()
    return report
