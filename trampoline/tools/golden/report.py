"""Comparison of whole golden files of any kind: totals for each kind, and every difference."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from asm import AsmError
from emu.errors import EmuError
from trampoline.bpf.errors import GoldenError, TrampolineError
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.fields import Fields, add_up, records
from trampoline.tools.golden.jit import JitTotals, compare_jit_file
from trampoline.tools.golden.recorded_programs import ProgramKernel, compare_program, compiled_programs
from trampoline.tools.golden.replay import ReplayKernel, ReplayOutcome
from trampoline.tools.golden.trampoline_case import Case, RecordedImage, read_cases
from trampoline.tools.golden.trampoline_images import TRAMPOLINE, Difference, compare_image
from trampoline.tools.golden.verdicts import VerdictTotals, compare_verdicts, default_btf_folder, kernel_btf

_OURS = (TrampolineError, EmuError, AsmError)


@dataclass(slots=True)
class GoldenTotals:
    """Number of items that were compared, that agree, and that were skipped (not in current recordings)."""

    total: int = 0
    identical: int = 0
    skipped: int = 0

    def count(self, *, agrees: bool) -> None:
        """Count one comparison."""
        self.total += 1
        self.identical += agrees


@dataclass(slots=True)
class GoldenReport:
    """Totals by kind. ``images``: per image; ``sites``: per target and moment; ``replay``: per live or attached case;
    ``jit``: per function of a program; ``verdicts``: per program that was loaded and attached.
    """

    images: GoldenTotals = field(default_factory=GoldenTotals)
    sites: GoldenTotals = field(default_factory=GoldenTotals)
    replay: GoldenTotals = field(default_factory=GoldenTotals)
    jit: JitTotals = field(default_factory=JitTotals)
    verdicts: VerdictTotals = field(default_factory=VerdictTotals)
    mismatches: list[Difference] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """True if there is no difference."""
        return not self.mismatches

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self) | {"verdicts": self.verdicts.to_json()}


class GoldenComparison:
    """Compares cases; kernels are booted once for each recorded boot.

    ``programs`` returns the kernel of a release for verification, or None, in which case programs are skipped.
    """

    def __init__(self, programs: Callable[[KernelRelease], ProgramKernel | None]) -> None:
        self._run = ""
        self._kernel: ReplayKernel | None = None
        self._programs = programs

    def check(self, case: Case) -> GoldenReport:
        """Compare everything that one case contains."""
        report = GoldenReport()
        for image in case.images:
            if image.kind == TRAMPOLINE:
                differences = _image_differences(case, image)
                report.images.count(agrees=not differences)
                report.mismatches += differences
        self._compare_programs(case, report)
        moments = sum(2 + len(target.steps) + (target.site_detached is not None) for target in case.targets)
        replayed = case.status in ("live", "attached")
        outcome = self._replay(case)
        report.sites.total = moments
        report.sites.identical = 0 if outcome.failures else moments - len(outcome.site_differences)
        if replayed:
            report.replay.count(agrees=not outcome.failures and not outcome.replay_differences)
        report.mismatches += outcome.site_differences + outcome.replay_differences + outcome.failures
        return report

    def _compare_programs(self, case: Case, report: GoldenReport) -> None:
        for program in compiled_programs(case):
            kernel = self._programs(case.release)
            if kernel is None:
                report.jit.skipped += 1
                continue
            differences = list(compare_program(case, program, kernel))
            report.jit.count(program.attach, agrees=not differences)
            report.mismatches += differences

    def close(self) -> None:
        """Free the last kernel."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def _replay(self, case: Case) -> ReplayOutcome:
        """Replay a case on the boot's kernel; if that fails, repeat it on a new kernel.

        Memory left over from an earlier case may occupy this case's addresses.
        """
        fresh = self._kernel is None or case.run != self._run
        if fresh:
            self.close()
        try:
            if self._kernel is None:
                self._kernel, self._run = ReplayKernel(case), case.run
            return self._kernel.replay(case)
        except _OURS as error:
            self.close()
            return ReplayOutcome(failures=[_failure(case, "replay", error)]) if fresh else self._replay(case)


def _image_differences(case: Case, image: RecordedImage) -> list[Difference]:
    try:
        return list(compare_image(case, image))
    except _OURS as error:
        return [_failure(case, f"image at {image.addr:#x}", error)]


def _failure(case: Case, what: str, error: Exception) -> Difference:
    """An error of this package as a difference of the case; the run continues."""
    return Difference(case.id, what, -1, "as recorded", f"{type(error).__name__}: {error}")


def file_kind(path: Path) -> str:
    """Kind of a recording, from its first line: ``trampolines``, ``jit`` or ``verdicts``.

    Raises GoldenError if the file is damaged or of no known kind.
    """
    for number, record in records(path):
        Fields(record, f"{path}:{number}").text("id")
        for kind, fields in _KINDS.items():
            if fields <= record.keys():
                return kind
        raise GoldenError(f"{path}:{number}: not a recorded case")
    raise GoldenError(f"{path}: no case in it")


_KINDS = {
    "trampolines": {"targets", "programs"},
    "verdicts": {"verdict"},
    "jit": {"bpf_jit_harden", "category"},
}
"""Fields that mark the lines of a kind, in the order in which kinds are tested."""


def compare_files(paths: Iterable[Path], btf_folder: Path | None = None, category: str = "") -> GoldenReport:
    """Compare every case of some golden files; of verdict recordings only those of ``category``, if given.

    ``btf_folder`` contains the kernels' BTF, which verdicts and programs of trampolines need; programs are skipped if
    no folder is given and none is next to the file. Raises GoldenError for a damaged or unknown file.
    """
    report = GoldenReport()
    for path in paths:
        kind = file_kind(path)
        if kind == "verdicts":
            totals, differences = compare_verdicts(path, btf_folder, category)
            add_up(report, GoldenReport(verdicts=totals, mismatches=differences))
        elif kind == "jit":
            jit, differences = compare_jit_file(path)
            add_up(report, GoldenReport(jit=jit, mismatches=differences))
        else:
            add_up(report, _compare_trampolines(path, btf_folder))
    return report


def _compare_trampolines(path: Path, btf_folder: Path | None) -> GoldenReport:
    @cache
    def programs(release: KernelRelease) -> ProgramKernel | None:
        try:
            return ProgramKernel(release, kernel_btf(btf_folder or default_btf_folder(path), release.name))
        except GoldenError:
            if btf_folder is not None:
                raise
            return None

    report, comparison = GoldenReport(), GoldenComparison(programs)
    try:
        for case in read_cases(path):
            add_up(report, comparison.check(case))
    finally:
        comparison.close()
    return report
