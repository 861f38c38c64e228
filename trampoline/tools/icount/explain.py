"""Explanation of differences: numbers, and the changed code with old and new side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from trampoline.tools.icount.compare import CountReport, CountVerdict, Finding, changed_phases
from trampoline.tools.icount.counted_path import CountedPath, PathPiece

CONTEXT = 3
"""Number of equal lines shown around changed ones."""
TABLES = 3
"""Largest number of paths that get a table of phases each; with more paths each has two lines."""
_NAMED = 3
"""Number of paths named for a common change."""
_WIDEST = 64


@dataclass(frozen=True)
class PathChange:
    """Changed code of one phase; None for code that was added or removed."""

    phase: str
    old: PathPiece | None
    new: PathPiece | None

    @property
    def name(self) -> str:
        """The image or function."""
        piece = self.new or self.old
        assert piece is not None
        return piece.name

    def text(self) -> str:
        """Old and new code side by side."""
        old, new = (piece.lines if piece is not None else () for piece in (self.old, self.new))
        return "\n".join(side_by_side(old, new, f"{self.name}, old", f"{self.name}, new"))


def changes(finding: Finding) -> list[PathChange]:
    """The code that changed in the phases that changed; empty if the baseline has no listing."""
    if finding.old.path is None:
        return []
    found = []
    for phase in changed_phases(finding):
        old, new = ({piece.name: piece for piece in _pieces(path, phase)} for path in (finding.old.path, finding.new))
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                found.append(PathChange(phase, old.get(name), new.get(name)))
    return found


def _pieces(path: CountedPath, phase: str) -> tuple[PathPiece, ...]:
    return path.phases[phase].pieces if phase in path.phases else ()


def side_by_side(old: Sequence[str], new: Sequence[str], old_title: str, new_title: str) -> Iterator[str]:
    """Two listings as columns; between them ``|`` for a changed line, ``<`` for a removed, ``>`` for an added one."""
    width = min(max(map(len, [*old, old_title])), _WIDEST)

    def row(left: str, mark: str, right: str) -> str:
        return f"  {left:{width}} {mark} {right}".rstrip()

    yield row(old_title, " ", new_title)
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        before = group[0][1]
        if before:
            yield row(f"... {before} alike", " ", "...")
        for kind, i, i_end, j, j_end in group:
            lefts, rights = old[i:i_end], new[j:j_end]
            for k in range(max(len(lefts), len(rights))):
                left, right = (part[k] if k < len(part) else "" for part in (lefts, rights))
                mark = " " if kind == "equal" else "|" if left and right else "<" if left else ">"
                yield row(left, mark, right)


def phase_rows(finding: Finding) -> list[tuple[str, int | None, int]]:
    """Every phase: its name, the old number (None: unknown), the new one."""
    old = finding.old.path.phases if finding.old.path is not None else None
    new = finding.new.phases
    names = [*new, *(name for name in old or () if name not in new)]
    return [
        (
            name,
            None if not old else old[name].instructions if name in old else 0,
            new[name].instructions if name in new else 0,
        )
        for name in names
    ]


def headline(finding: Finding) -> str:
    """One line: the numbers and the verdict."""
    old, new = finding.old.instructions, finding.new.instructions
    was = unbalanced_before(finding)
    now = finding.new.unbalanced_returns
    returns = f", unbalanced returns {was} -> {now} ({now - was:+d})" if was is not None and was != now else ""
    limits = f" ({finding.limits})" if finding.limits.is_stated else ""
    return f"{finding.name}: {finding.words}{limits}: {old} -> {new} instructions ({new - old:+d}){returns}"


def remark(finding: Finding) -> str:
    """One line about a difference that is not a failure."""
    return f"{'warning: ' if finding.warns else ''}{headline(finding)}"


def unbalanced_before(finding: Finding) -> int | None:
    """The baseline's unbalanced returns, None if unknown."""
    return None if finding.old.path is None else finding.old.path.unbalanced_returns


def explain(findings: Sequence[Finding]) -> str:
    """Explanation of some findings: each path's numbers, then each change of code once."""
    parts = []
    for finding in findings:
        parts.append(table(finding) if len(findings) <= TABLES else short(finding))
    where: dict[PathChange, list[str]] = {}
    for finding in findings:
        for change in changes(finding):
            where.setdefault(change, []).append(finding.name)
    for change, names in where.items():
        paths = "" if len(findings) == 1 else f", {_named(names)}"
        parts.append(f"phase {change.phase}, code that changed{paths}:\n{change.text()}")
    return "\n\n".join(parts)


def table(finding: Finding) -> str:
    """The whole path and every phase: old, new, difference."""
    lines = [headline(finding)]
    if finding.new.conditions:
        lines.append("  " + ", ".join(f"{key} {value}" for key, value in finding.new.conditions.items()))
    lines.append(f"  {'':20}{'old':>7}{'new':>7}")
    lines.append(_row("whole path", finding.old.instructions, finding.new.instructions))
    rows = phase_rows(finding)
    lines += [_row(f"  {name}", old, new) for name, old, new in rows]
    lines.append(_row("unbalanced returns", unbalanced_before(finding), finding.new.unbalanced_returns))
    return "\n".join([*lines, *_edited(finding, rows)])


def _row(name: str, old: int | None, new: int) -> str:
    difference = f"{new - old:+8d}" if old is not None and new != old else ""
    return f"  {name:20}{'-' if old is None else old:>7}{new:>7}{difference}"


def short(finding: Finding) -> str:
    """The numbers of a path on two lines."""
    rows = phase_rows(finding)
    phases = "  ".join(
        f"{name} {new}" if old in (None, new) else f"{name} {old} -> {new} ({new - (old or 0):+d})"
        for name, old, new in rows
    )
    unbalanced = f"unbalanced returns {finding.new.unbalanced_returns}"
    return "\n".join([headline(finding), f"  {phases}; {unbalanced}", *_edited(finding, rows)])


def _edited(finding: Finding, rows: Iterable[tuple[str, int | None, int]]) -> list[str]:
    known = finding.old.path
    if known is None:
        return ["  The baseline's header lacks this path: the count was written by hand."]
    if known.instructions != finding.old.instructions:
        return [
            f"  The phases in the baseline's header add up to {known.instructions}, its line"
            f" {finding.old.line} says {finding.old.instructions}: it was changed by hand."
        ]
    return []


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{len(names)} path{'s' * (len(names) != 1)} ({shown}{f', and {more} more' if more > 0 else ''})"


def explain_report(report: CountReport, file: str, remedy: str) -> str:
    """Comparison with a baseline as text, empty if all is equal. ``remedy``: the command that makes ``file``."""
    parts = []
    failures = report.failures
    if failures:
        parts.append(explain(failures))
    parts += [remark(finding) for finding in report.differing if not finding.fails]
    if report.foreign:
        name, others = next(iter(report.foreign.items()))
        more = f", and {len(report.foreign) - 1} more" if len(report.foreign) > 1 else ""
        parts.append(f"{file} is another kernel's or design's baseline: {name}{more}: {'; '.join(others)}")
    for names, what in (
        (report.missing, f"{file} has no count of"),
        (report.stale, f"{file} is stale; no longer counted:"),
    ):
        if names:
            parts.append("\n".join([f"{what}", *(f"  {name}" for name in names)]))
    if parts:
        parts.append(f"{_wanted(report)}: {remedy}")
    return "\n\n".join(parts)


def _wanted(report: CountReport) -> str:
    if report.missing or report.stale or report.foreign:
        return "To rewrite the baseline"
    if any(finding.verdict is not CountVerdict.SHORTER for finding in report.failures):
        return f"If {'this is' if len(report.differing) == 1 else 'these are'} intended, update the baseline"
    return "The baseline needs an update"
