"""``tramp mutants``: put historic bugs back one by one, and search for them with sequences and schedules."""

import argparse
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import seconds, whole

if TYPE_CHECKING:
    from trampoline.tools.mutants.campaign import Hunted


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "mutants",
        help="put historic bugs back and search for them",
        description="For each mutant, run sequences and schedules, in the same order for all, until one has a finding"
        " or the time is over. Without names: all mutants, and then the control, the same on unchanged code. Exit"
        " status 1 if a mutant is not found or the control has a finding.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants (default: all of them)")
    parser.add_argument("--module", metavar="FILE", help="more mutants, from a Python file that defines MUTANTS")
    parser.add_argument("--budget", type=seconds, default=60.0, metavar="T", help="time for each, 60s (default) or 2m")
    parser.add_argument(
        "--jobs", type=whole("number of processes", 1, 256), default=2, metavar="N",
        help="processes at a time (default: 2)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--control", action="store_true", help="run the control: alone, or after the mutants named")


def run(arguments: argparse.Namespace) -> int:
    """Run the campaigns; returns 1 if a mutant was not found or the control has a finding."""
    import json

    from trampoline.extras import extra

    with extra("testing", "tramp mutants"):
        import hypothesis  # noqa: F401
    from trampoline.tools.mutants.campaign import Hunt, control, control_json, hunt
    from trampoline.tools.mutants.catalogue import known
    from trampoline.tools.mutants.mutant import chosen

    mutants = chosen(known(arguments.module), arguments.names)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:32} {mutant.bug + ': ' if mutant.bug else ''}{mutant.mechanism}")
        return 0
    if arguments.control and not arguments.names and arguments.module is None:
        mutants = []
    how = Hunt(arguments.budget, arguments.jobs, arguments.seed, arguments.module)
    _prepare()
    rows: list[Hunted] = []
    if mutants and not arguments.json:
        print(HEAD)
    for mutant in mutants:
        rows.append(hunt(mutant, how))
        if not arguments.json:
            print(line(rows[-1]), flush=True)
    unmutated = None
    if arguments.control or not arguments.names:
        unmutated = control(how)
    if arguments.json:
        print(json.dumps({"mutants": [row.as_json() for row in rows], "control": control_json(unmutated)}))
    else:
        if len(rows) == 1:
            _print_finding(rows[0])
        _print_summary(rows, unmutated)
    return int(any(not row.found for row in rows) or (unmutated is not None and unmutated.violations > 0))


_prepared: list[str] = []
"""Designs that the parent process boots once."""


def _prepare() -> None:
    """Import the workers' modules, and fill the assembler's caches, before workers start."""
    import trampoline.tools.mutants.detectors  # noqa: F401
    from trampoline.lab import Lab
    from trampoline.tools.mutants.plan import HUNTED

    while len(_prepared) < len(HUNTED):
        _prepared.append(HUNTED[len(_prepared)])
        Lab(design=_prepared[-1], counting="off").close()


HEAD = f"{'mutant':32} {'found':5} {'by':9} {'tries':>6} {'seconds':>7}  where, and what was wrong"


def line(row: "Hunted") -> str:
    """One row of the table."""
    where = "" if row.unit is None else f"{row.unit.subject}: {row.what}"
    found = "yes" if row.found else "no"
    return f"{row.name:32} {found:5} {row.by or '-':9} {row.tries:6} {row.seconds:7.1f}  {where[:110]}".rstrip()


def _print_finding(row: "Hunted") -> None:
    """Print the whole finding, which a row of the table cuts; without one, the tries."""
    if row.unit is None:
        print(f"  nothing in {row.sequences} sequences with {row.steps} steps and in {row.schedules} schedules")
    else:
        print(f"  {row.unit.conditions}: {row.what}")


def _print_summary(rows: "list[Hunted]", checked: "Hunted | None") -> None:
    if rows:
        found = [row for row in rows if row.found]
        quick = sum(row.seconds <= 5 for row in found)
        print(f"{len(found)} of {len(rows)} found, {quick} of them within 5 seconds")
    if checked is not None:
        print(
            f"control: {checked.sequences} sequences with {checked.steps} steps and {checked.schedules} schedules in"
            f" {checked.seconds:.0f} seconds, {checked.violations} violations"
        )
        for text in checked.seen:
            print(f"  {text}")
