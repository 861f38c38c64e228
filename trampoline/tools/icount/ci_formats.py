"""Machine-readable comparison with a baseline: JSON, JUnit XML, GitHub annotations."""

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from trampoline.tools.icount.compare import CountReport, CountVerdict, Finding
from trampoline.tools.icount.explain import changes, explain, headline, phase_rows, unbalanced_before

STALE = "no longer counted"
MISSING = "the baseline has no count of it"


def to_json(report: CountReport, baseline: str, status: int) -> dict[str, Any]:
    """The report as plain values; ``old`` is null if the baseline lacks it."""
    return {
        "baseline": baseline,
        "status": status,
        "paths": [_finding(finding) for finding in report.findings],
        "missing": report.missing,
        "stale": report.stale,
        "foreign": report.foreign,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    known = unbalanced_before(finding)
    return {
        "name": finding.name,
        "verdict": finding.verdict.name.lower(),
        "fails": finding.fails,
        "line": finding.old.line,
        "instructions": _numbers(finding.old.instructions, finding.new.instructions),
        "unbalanced_returns": _numbers(known, finding.new.unbalanced_returns),
        "phases": {name: _numbers(old, new) for name, old, new in phase_rows(finding)},
        "limits": {"soft": str(finding.limits.soft), "hard": str(finding.limits.hard)},
        "conditions": dict(finding.new.conditions),
        "changed_code": [
            {
                "phase": change.phase,
                "name": change.name,
                "old": list(change.old.lines) if change.old else None,
                "new": list(change.new.lines) if change.new else None,
            }
            for change in (changes(finding) if finding.verdict is not CountVerdict.EQUAL else ())
        ],
    }


def _numbers(old: int | None, new: int) -> dict[str, int | None]:
    return {"old": old, "new": new, "difference": None if old is None else new - old}


def to_junit(report: CountReport, baseline: str) -> str:
    """JUnit XML: a test case for each path; a missing, stale or foreign one is an error."""
    errors = {name: f"counted under other conditions: {'; '.join(others)}" for name, others in report.foreign.items()}
    errors |= dict.fromkeys(report.missing, MISSING) | dict.fromkeys(report.stale, STALE)
    numbers = {
        "tests": str(len(report.findings) + len(errors)),
        "failures": str(len(report.failures)),
        "errors": str(len(errors)),
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(root, "testsuite", {"name": baseline} | numbers)
    for finding in report.findings:
        case = ElementTree.SubElement(suite, "testcase", {"classname": baseline, "name": finding.name})
        if finding.fails:
            failure = ElementTree.SubElement(
                case, "failure", {"type": finding.verdict.name.lower(), "message": headline(finding)}
            )
            failure.text = explain([finding])
        elif finding.verdict is not CountVerdict.EQUAL:
            ElementTree.SubElement(case, "system-out").text = explain([finding])
    for name, what in errors.items():
        case = ElementTree.SubElement(suite, "testcase", {"classname": baseline, "name": name})
        ElementTree.SubElement(case, "error", {"type": "baseline", "message": what})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_github(report: CountReport, baseline: str, lines: Mapping[str, int]) -> Iterable[str]:
    """Workflow commands, one per line: an error for a failure, a warning beyond a soft limit, a notice for the rest.

    ``lines``: line numbers of the names in the baseline.
    """
    for finding in report.differing:
        kind = "error" if finding.fails else "warning" if finding.warns else "notice"
        yield _command(kind, baseline, finding.old.line, f"{finding.name} {finding.words}", explain([finding]))
    for name, others in report.foreign.items():
        yield _command("error", baseline, lines.get(name, 1), f"{name} of another kernel", "; ".join(others))
    for name in report.missing:
        yield _command("error", baseline, 1, f"{name} missing", f"{name}: {MISSING}")
    for name in report.stale:
        yield _command("error", baseline, lines.get(name, 1), f"{name} stale", f"{name}: {STALE}")


def _command(kind: str, file: str, line: int, title: str, message: str) -> str:
    """https://docs.github.com/actions/reference/workflow-commands: % and line ends, in properties : and , as well."""

    def data(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    def value(text: str) -> str:
        return data(text).replace(":", "%3A").replace(",", "%2C")

    return f"::{kind} file={value(file)},line={line},title={value(title)}::{data(message)}"
