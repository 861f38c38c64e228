"""``tramp explore``: run schedules of a scenario until one breaks something."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trampoline.explore.campaign import Found, Tally


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "explore",
        help="look for races: run a scenario's calls and operations in many orders",
        description="Run a scenario under one schedule after the other. What breaks an invariant is made as small as it"
        " can be and printed, with the command that replays it. The same arguments run the same schedules; time only"
        " ends them.",
    )
    parser.add_argument("--scenario", default="all", metavar="S", help="by name, or all (default)")
    parser.add_argument("--design", default="all", metavar="D", help="any design, or all (default)")
    parser.add_argument("--flavour", default="6.12", metavar="F", help="6.1, 6.12 or 7.2 (default: 6.12)")
    parser.add_argument("--config", default="voluntary", metavar="C", help="voluntary (default), lazy or none")
    parser.add_argument(
        "--scheduler", default="pct:3", metavar="SPEC",
        help="pct:N, random, urw, sticky:N, bounded:N, dfs or dfs:all (default: pct:3)",
    )  # fmt: skip
    parser.add_argument("--budget", type=_seconds, metavar="T", help="time for each pair, 60s or 2m (default: 10s)")
    parser.add_argument("--schedules", type=int, metavar="N", help="this many for each pair, instead of a time")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--long", action="store_true", help="leave no step out of the report")


def run(arguments: argparse.Namespace) -> int:
    """Explore; 1 where something broke."""
    from rich.console import Console

    from trampoline.designs import DESIGNS
    from trampoline.errors import KernelError, TrampolineError
    from trampoline.explore.campaign import campaign
    from trampoline.explore.scenarios import SCENARIOS, applies

    scenarios = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    designs = list(DESIGNS) if arguments.design == "all" else [arguments.design]
    for name, among in ((arguments.scenario, SCENARIOS), (arguments.design, DESIGNS)):
        if name != "all" and name not in among:
            raise TrampolineError(f"no {name!r}; there are {', '.join(among)}")
    seconds = arguments.budget if arguments.schedules is None else None
    if seconds is None and arguments.schedules is None:
        seconds = 10.0
    console = Console(stderr=True)
    broken = False
    for scenario in scenarios:
        for design in designs:
            if not applies(scenario, design):
                continue
            with console.status(f"{scenario}, {design}") as status:

                def progress(tally: "Tally", name: str = f"{scenario}, {design}", status: Any = status) -> None:
                    status.update(f"{name}: {tally.schedules} schedules, {tally.rate:.0f}/s, {len(tally.pairs)} pairs")

                try:
                    tally = campaign(
                        scenario,
                        design,
                        arguments.flavour,
                        arguments.config,
                        scheduler=arguments.scheduler,
                        seed=arguments.seed,
                        schedules=arguments.schedules,
                        seconds=seconds,
                        progress=progress,
                    )
                except KernelError as error:
                    print(f"{scenario:22} {design:17} can't be: {error}")
                    continue
            print(summary(scenario, design, tally))
            if tally.found is not None:
                broken = True
                print_found(tally.found, whole=arguments.long)
    return 1 if broken else 0


def summary(scenario: str, design: str, tally: "Tally") -> str:
    """What was done, in one line."""
    parts = [
        f"{tally.schedules} schedules",
        f"{tally.steps / max(tally.schedules, 1):.1f} steps each",
        f"{tally.rate:.0f}/s",
        f"{len(tally.pairs)} pairs of places",
    ]
    if tally.pruned:
        parts.append(f"{tally.pruned} redundant")
    if tally.cut:
        parts.append(f"{tally.cut} cut short")
    if tally.exhausted:
        parts.append("that is all of them")
    verdict = tally.found.shrunk.violation.kind if tally.found and tally.found.shrunk.violation else "nothing broke"
    return f"{scenario:22} {design:17} {', '.join(parts)}: {verdict}"


def print_found(found: "Found", *, whole: bool = False) -> None:
    """The report of what was found."""
    shown = found.report if whole else found.report.shortened()
    print()
    print(shown.text())
    print()
    print(
        f"schedule {found.number} had {found.outcome.steps} steps and {found.outcome.switches} switches; made"
        f" smaller in {found.runs} runs to {found.shrunk.steps} steps and {found.shrunk.switches} switches:"
    )
    print(f"  {found.command}\n")


def _seconds(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 60s, 2m")
    return value
