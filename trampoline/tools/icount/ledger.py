"""Ledger of counts by test module: the part of the pytest plugin that reads and writes baselines.

Each process that runs tests has a ledger; with pytest-xdist the controller merges those of the workers.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as File

from emu.atomic_file import write_whole
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.icount.baseline import Baseline, BaselineEntry, format_baseline
from trampoline.tools.icount.compare import CountReport, compare_all, update_of
from trampoline.tools.icount.counted_path import CountedPath, check_name
from trampoline.tools.icount.errors import BaselineError
from trampoline.tools.icount.explain import explain_report, remark
from trampoline.tools.icount.limits import Limits

MADE_BY = "pytest --icount-update"
SUFFIX = ".icount"


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """One check: its count, its limits and its test."""

    path: CountedPath
    limits: Limits
    test: str


@dataclass(slots=True)
class CheckLedger:
    """Checks by module and name. ``folder``: base of the modules' paths. ``notes``: differences that are not failures,
    one line each; ``errors``: of whole baselines.
    """

    folder: File
    records: dict[str, dict[str, CheckRecord]] = field(default_factory=dict)
    checked: dict[str, set[str]] = field(default_factory=dict)
    """Names that other processes checked, without further data."""
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _baselines: dict[str, Baseline] = field(default_factory=dict)

    def add(self, module: str, name: str, record: CheckRecord) -> None:
        """Add a check. Raises TrampolineError for an invalid name, or one that another check has with other numbers."""
        known = self.records.setdefault(module, {}).setdefault(check_name(name), record)
        if (known.path, known.limits) != (record.path, record.limits):
            raise TrampolineError(
                f"{name} has two checks that differ: {known.path.instructions} instructions in {known.test},"
                        f" {record.path.instructions} in {record.test}; use different names"
            )

    def check(self, module: str, records: Mapping[str, CheckRecord]) -> str:
        """Compare checks of one module with its baseline; returns the failures as text, empty if there are none."""
        file = baseline_of(module)
        try:
            baseline = self._baseline(file)
        except BaselineError as error:
            return f"{error}\n\nTo make it: {remedy(module)}"
        report = CountReport()
        for name, record in records.items():
            one = compare_all(baseline.entries, {name: record.path}, record.limits, partial=True)
            report.findings += one.findings
            report.missing += one.missing
            report.foreign |= one.foreign
        failures = report.failures
        self.notes += [remark(finding) for finding in report.differing if not finding.fails]
        if not (failures or report.missing or report.foreign):
            return ""
        report.findings = failures
        return explain_report(report, str(file), remedy(module))

    def _baseline(self, file: File) -> Baseline:
        if str(file) not in self._baselines:
            try:
                found = Baseline.read(self.folder / file)
            except BaselineError as error:
                raise BaselineError(file, error.reason, error.line) from error
            if found.made_by != MADE_BY:
                raise BaselineError(file, f"made by {found.made_by or 'hand'}, not by {MADE_BY}")
            self._baselines[str(file)] = found
        return self._baselines[str(file)]

    # Between processes ----------------------------------------------------------------------------------------------

    def packed(self, *, whole: bool) -> bytes:
        """Serialise for another process of the run; not ``whole``: only the names of checks."""
        if whole:
            return pickle.dumps((self.records, {}, self.notes))
        return pickle.dumps(({}, {module: list(records) for module, records in self.records.items()}, self.notes))

    def take_in(self, packed: bytes) -> None:
        """Merge another process's ledger. Contradicting checks become ``errors``."""
        others, checked, notes = pickle.loads(packed)
        for module, names in checked.items():
            self.checked.setdefault(module, set()).update(names)
        for module, records in others.items():
            for name, record in records.items():
                try:
                    self.add(module, name, record)
                except TrampolineError as error:
                    self.errors.append(str(error))
        self.notes += [note for note in notes if note not in self.notes]

    # At the end -----------------------------------------------------------------------------------------------------

    def stale(self, whole: Mapping[str, bool]) -> None:
        """Find names that no test checks any more. ``whole``: modules, and whether all their tests ran and passed."""
        for module, is_whole in whole.items():
            file = baseline_of(module)
            if not is_whole or not self._exists(file):
                continue
            try:
                entries = self._baseline(file).entries
            except BaselineError as error:
                self.errors.append(f"{error}; to rewrite it: {remedy(module)}")
                continue
            names = sorted(set(entries) - self._names(module))
            if names:
                report = CountReport(stale=names)
                self.errors.append(explain_report(report, str(file), remedy(module)))
        self._orphans()

    def _names(self, module: str) -> set[str]:
        return {*self.records.get(module, ()), *self.checked.get(module, ())}

    def _exists(self, file: File) -> bool:
        return (self.folder / file).exists()

    def _orphans(self) -> None:
        for folder in sorted({File(module).parent for module in {*self.records, *self.checked}}):
            for found in sorted((self.folder / folder).glob(f"*{SUFFIX}")):
                file = folder / found.name
                if not self._exists(file.with_suffix(".py")):
                    self.errors.append(f"{file} is stale: no {file.with_suffix('.py').name}; delete it")

    def update(self, whole: Mapping[str, bool]) -> list[str]:
        """Rewrite the baselines of modules that ran, all or none; returns the changes, one per line.

        Names that were not checked stay, unless all tests of their module ran and passed.
        """
        said: list[str] = []
        files: dict[File, str] = {}
        gone: list[File] = []
        for module in sorted({*whole, *self.records}):
            is_whole = whole.get(module, False)
            file, records = baseline_of(module), self.records.get(module, {})
            if not records and not (is_whole and self._exists(file)):
                continue
            try:
                entries: Mapping[str, BaselineEntry] = self._baseline(file).entries if self._exists(file) else {}
            except BaselineError as error:
                if not is_whole:
                    self.errors.append(f"{error}; run all tests of {module} to rewrite it, or delete it")
                    continue
                entries = {}
                said.append(f"{error}: rewritten")
            made = {name: (record.path, record.limits) for name, record in records.items()}
            if not is_whole:
                made |= {
                    name: (_kept(entry), entry.limits) for name, entry in entries.items() if name not in made
                }
            change = update_of(entries, made)
            said += [f"{file}: {line}" for line in change.lines()]
            if not made:
                gone.append(file)
            elif change or not self._exists(file) or not entries:
                files[file] = format_baseline(made, MADE_BY)
        said.append(_written(files, gone))
        try:
            write_whole({self.folder / file: text for file, text in files.items()})
            for file in gone:
                (self.folder / file).unlink()
        except OSError as error:
            self.errors.append(f"{error.filename}: {error.strerror}: no baseline was written")
            return []
        self._orphans()
        return said


def _kept(entry: BaselineEntry) -> CountedPath:
    if entry.path is None:
        return CountedPath(entry.instructions, 0, {})
    known = entry.path
    return CountedPath(entry.instructions, known.unbalanced_returns, known.phases, known.conditions)


def _written(files: Mapping[File, str], gone: list[File]) -> str:
    removed = f", {len(gone)} removed" if gone else ""
    return f"{len(files)} baseline{'s' * (len(files) != 1)} written{removed}"


def baseline_of(module: str) -> File:
    """The baseline of a test module: the file next to it."""
    return File(module).with_suffix(SUFFIX)


def remedy(module: str) -> str:
    """The command that rewrites the baseline of a module."""
    return f"{MADE_BY} {module}"
