"""``tramp count``: the instructions of paths, compared with a baseline."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import add_workload, print_json

if TYPE_CHECKING:
    from trampoline.tools.commands._count_selection import Selected

EQUAL, UNUSABLE, DIFFERENT = 0, 2, 3


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "count",
        help="compare the instructions of paths with a baseline",
        description="Count the instructions of paths, and compare them with a baseline: the calls of TARGET or,"
        " without one, the bench's rows. Without options of either, the paths of the baseline. Exit status: 0 no"
        " count differs beyond its limit, 3 one does, 2 the baseline is missing, stale or not usable.",
    )
    add_selection(parser)
    parser.add_argument("--baseline", type=Path, metavar="FILE", required=True, help="the file to compare with")
    parser.add_argument("--update", action="store_true", help="make or rewrite the baseline, and print the changes")
    parser.add_argument("--soft", metavar="N|N%", help="a greater difference is a warning; instructions or percent")
    parser.add_argument("--hard", metavar="N|N%", help="a greater difference is a failure (default: 0, or of FILE)")
    parser.add_argument("--junit", type=Path, metavar="XML", help="write JUnit XML as well")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--github", action="store_true", help="print GitHub's annotations as well")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add options for the paths to count."""
    add_workload(parser, optional=True)
    bench = parser.add_argument_group(
        "the bench's rows", "without a TARGET; --flavour, --config and --design may also be all"
    )
    bench.add_argument("--nr-args", type=int, metavar="N", help="arguments of the traced function (default: 1)")
    bench.add_argument("--programs", type=int, metavar="K", dest="attached", help="programs attached (default: 1)")
    bench.add_argument("--full", action="store_true", help="programs that also read ip, cookie and argument count")
    parser.set_defaults(design=None, config=None)


def run(arguments: argparse.Namespace) -> int:
    """Count, then compare or update, and print."""
    from trampoline.tools.commands._count_selection import check_conditions, selected, with_remedy
    from trampoline.tools.icount.baseline import Baseline
    from trampoline.tools.icount.limits import Limits

    file: Path = arguments.baseline
    given = None
    if arguments.soft is not None or arguments.hard is not None:
        given = Limits.parse(arguments.soft, arguments.hard)
    with with_remedy(file, update=arguments.update):
        baseline = None if arguments.update and not file.exists() else Baseline.read(file)
        wanted, is_whole = selected(arguments, baseline, file)
    paths = wanted.paths()
    if arguments.update:
        return _update(arguments, wanted, paths, baseline, given)
    assert baseline is not None
    check_conditions(baseline, paths, file)

    from emu.atomic_file import write_whole
    from trampoline.tools.icount.ci_formats import to_github, to_json, to_junit
    from trampoline.tools.icount.compare import compare_all
    from trampoline.tools.icount.explain import explain_report

    report = compare_all(baseline.entries, paths, given, partial=not is_whole)
    bad = report.missing or report.stale or report.foreign
    status = DIFFERENT if report.failures else UNUSABLE if bad else EQUAL
    if arguments.junit is not None:
        write_whole({arguments.junit: to_junit(report, str(file))})
    if arguments.json:
        print_json(to_json(report, str(file), status))
        return status
    text = explain_report(report, str(file), wanted.remedy(file))
    equal = len(report.findings) - len(report.differing)
    print(f"{text}\n" if text else "", end="")
    print(f"{equal} of {len(paths)} path{'s' * (len(paths) != 1)} as in {file}")
    if arguments.github:
        lines = {name: entry.line for name, entry in baseline.entries.items()}
        for line in to_github(report, str(file), lines):
            print(line)
    return status


def _update(arguments: argparse.Namespace, wanted: "Selected", paths: Any, baseline: Any, given: Any) -> int:
    from emu.atomic_file import write_whole
    from trampoline.bpf.errors import TrampolineError
    from trampoline.tools.icount.baseline import format_baseline
    from trampoline.tools.icount.compare import update_of
    from trampoline.tools.icount.limits import Limits

    if arguments.junit is not None or arguments.github:
        raise TrampolineError("--update does not compare: not with --junit or --github")
    file: Path = arguments.baseline
    entries = {} if baseline is None else baseline.entries
    kept = {name: entry.limits for name, entry in entries.items()}
    made = {name: (path, given or kept.get(name, Limits())) for name, path in paths.items()}
    change = update_of(entries, made)
    write_whole({file: format_baseline(made, wanted.made_by)})
    if arguments.json:
        import json

        changed = {name: {"old": old, "new": new} for name, (old, new) in change.changed.items()}
        written = {"baseline": str(file), "written": len(made), "changed": changed, "same": list(change.same_number)}
        print(json.dumps(written, indent=2))
        return EQUAL
    for line in change.lines():
        print(line)
    print(f"{file}: {len(made)} path{'s' * (len(made) != 1)} written" + ("" if change else ", nothing changed"))
    return EQUAL
