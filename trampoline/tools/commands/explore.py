"""``tramp explore``: run schedules of a scenario until one has a violation."""

import argparse
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import add_config, add_flavour, seconds, whole

if TYPE_CHECKING:
    from trampoline.tools.explore.campaign import CampaignTally, FoundViolation
    from trampoline.tools.explore.chunk import Work
    from trampoline.tools.explore.failing_schedules import Examples
    from trampoline.tools.explore.workers import Workers

_POSITIVE = whole("number above 0", 1)
_INTERRUPTED = 128 + 2
_JSON_VERSION = 1


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "explore",
        help="look for races: run a scenario's calls and operations in many orders",
        description="Run a scenario under one schedule after the other. A violation of an invariant is minimised and"
        " printed, with the command that replays it. The same arguments run the same schedules on any machine; the"
        " time limit only ends the run.",
    )
    parser.add_argument("--scenario", default="all", metavar="S", help="by name, or all (default)")
    parser.add_argument(
        "--design", default="all", metavar="D",
        help="a design, MODULE:NAME or FILE:NAME of a factory, with +METADATA; or all (default)",
    )  # fmt: skip
    add_flavour(parser)
    add_config(parser)
    parser.add_argument(
        "--scheduler", default="pct:3", metavar="SPEC",
        help="pct:N, random, urw, sticky:N, bounded:N, delays:N, dfs or dfs:all (default: pct:3)",
    )  # fmt: skip
    parser.add_argument("--budget", type=seconds, metavar="T", help="time for each pair, 60s or 2m (default: 10s)")
    parser.add_argument(
        "--schedules", type=_POSITIVE, metavar="N", help="this many for each pair, instead of a time"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--jobs", type=_POSITIVE, metavar="N", help="worker processes (default: one a processor)")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on the workers of this Dask scheduler, tcp://HOST:PORT")
    parser.add_argument(
        "--coverage", type=int, default=4, metavar="N",
        help="collect coverage of one schedule in N; 0: of none (default: 4)",
    )  # fmt: skip
    parser.add_argument(
        "--examples", nargs="?", const=".hypothesis/examples", metavar="DIR",
        help="keep failing schedules in a Hypothesis example database, and try them first next time",
    )  # fmt: skip
    parser.add_argument(
        "--redis", metavar="URL", help="keep them in a shared database: redis://HOST:PORT/NUMBER"
    )
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    parser.add_argument("--long", action="store_true", help="print every step in the report")


def run(arguments: argparse.Namespace) -> int:
    """Run the campaigns and print them; returns 1 for a violation."""
    import json

    from rich.console import Console

    from trampoline.bpf.errors import KernelError
    from trampoline.tools.explore.campaign import run_campaign

    works = _works(arguments)
    seconds = arguments.budget or (10.0 if arguments.schedules is None else None)
    examples = _examples(arguments)
    console = Console(stderr=True)
    broken = interrupted = False
    records = []
    workers = _workers(arguments, works)
    try:
        for work in works:
            name = f"{work.scenario:22} {work.design:17}"
            with console.status(name) as status:

                def progress(tally: "CampaignTally", name: str = name, status: Any = status) -> None:
                    status.update(f"{name} {_progress(tally)}")

                try:
                    tally = run_campaign(
                        work, workers, schedules=arguments.schedules, seconds=seconds, examples=examples,
                        progress=progress,
                    )  # fmt: skip
                except KernelError as error:
                    if arguments.json:
                        records.append(_named(work) | {"error": str(error)})
                    else:
                        print(f"{name} cannot run: {error}")
                    continue
            if arguments.json:
                records.append(_record(work, tally))
            else:
                print(f"{name} {summary(tally)}", flush=True)
            if tally.found is not None:
                broken = True
                if not arguments.json:
                    print_found(tally.found, whole=arguments.long)
            if tally.interrupted:
                interrupted = True
                break
    finally:
        workers.close()
    if arguments.json:
        print(json.dumps({"version": _JSON_VERSION, "campaigns": records}, indent=2))
    return _INTERRUPTED if interrupted else 1 if broken else 0


def _works(arguments: argparse.Namespace) -> "list[Work]":
    """The scenarios and designs to explore. Raises TrampolineError."""
    from trampoline.bpf.errors import TrampolineError
    from trampoline.tools.explore.chunk import Work
    from trampoline.tools.explore.design_name import NamedDesign
    from trampoline.tools.explore.scenarios import SCENARIOS, applies, designs_for

    if arguments.scenario != "all" and arguments.scenario not in SCENARIOS:
        raise TrampolineError(f"no scenario {arguments.scenario!r}; the scenarios are {', '.join(SCENARIOS)}")
    if arguments.design != "all":
        NamedDesign.of(arguments.design)
    if arguments.coverage < 0:
        raise TrampolineError(f"--coverage {arguments.coverage}: pass 0 or a number above 0")
    found = []
    for scenario in SCENARIOS if arguments.scenario == "all" else [arguments.scenario]:
        for design in designs_for(scenario) if arguments.design == "all" else [arguments.design]:
            if applies(scenario, design):
                found.append(
                    Work(
                        scenario, design, arguments.flavour, arguments.config, arguments.scheduler, arguments.seed,
                        arguments.coverage,
                    )
                )  # fmt: skip
    if not found:
        raise TrampolineError(f"{arguments.scenario} does not apply to {arguments.design}")
    _ = found[0].is_divisible
    return found


def _workers(arguments: argparse.Namespace, works: "list[Work]") -> "Workers":
    """The workers for the chunks. Raises TrampolineError."""
    from trampoline.bpf.errors import TrampolineError
    from trampoline.tools.explore.chunk import CHUNK
    from trampoline.tools.explore.workers import Processes, ThisProcess, processors

    if arguments.dask is not None:
        from trampoline.tools.explore.cluster import Cluster

        if arguments.jobs is not None:
            raise TrampolineError("--jobs: not with --dask, whose cluster has its own workers")
        return Cluster(arguments.dask)
    jobs = arguments.jobs or processors()
    if works[0].is_divisible and arguments.schedules is not None:
        jobs = min(jobs, -(-arguments.schedules // CHUNK))
    return Processes(jobs) if jobs > 1 and works[0].is_divisible else ThisProcess()


def _examples(arguments: argparse.Namespace) -> "Examples | None":
    """The selected example database. Raises TrampolineError."""
    import os

    from trampoline.extras import extra
    from trampoline.tools.explore.failing_schedules import Examples

    # The name, not example_database.REDIS_VARIABLE: that module needs Hypothesis, an extra.
    if arguments.examples is None and arguments.redis is None and "TRAMP_REDIS" not in os.environ:
        return None
    with extra("campaigns", "a database of examples"):
        from trampoline.testing.example_database import example_database
    return Examples(example_database(arguments.examples, arguments.redis))


def _progress(tally: "CampaignTally") -> str:
    covered = tally.count.coverage
    text = f"{tally.schedules} schedules, {tally.rate:.0f}/s, {len(covered.edges)} edges, {len(covered.pairs)} pairs"
    return f"{text}, violation found" if tally.broken else text


def summary(tally: "CampaignTally") -> str:
    """One-line summary of a campaign."""
    covered = tally.count.coverage
    parts = [
        f"{tally.schedules} schedules",
        f"{tally.steps / max(tally.schedules, 1):.1f} steps each",
        f"{tally.rate:.0f}/s",
    ]
    if covered.edges:
        parts.append(f"{len(covered.edges)} edges, {len(covered.states)} states, {len(covered.pairs)} pairs")
    if tally.known:
        parts.append(f"{tally.known} known before")
    if tally.pruned:
        parts.append(f"{tally.pruned} redundant")
    if tally.cut:
        parts.append(f"{tally.cut} cut short")
    if tally.exhausted:
        parts.append("that is all of them")
    if tally.interrupted:
        parts.append("interrupted")
    verdict = tally.found.shrunk.violation.kind if tally.found and tally.found.shrunk.violation else "nothing broke"
    return f"{', '.join(parts)}: {verdict}"


def print_found(found: "FoundViolation", *, whole: bool = False) -> None:
    """Print the report of a violation."""
    shown = found.report if whole else found.report.shortened()
    print()
    print(shown.text())
    print()
    size = f"{found.shrunk.steps} steps and {found.shrunk.switches} switches"
    if found.number:
        print(
            f"schedule {found.number} had {found.outcome.steps} steps and {found.outcome.switches} switches; made"
            f" smaller in {found.runs} runs to {size}:"
        )
    else:
        print(f"the schedule that was known before has {size}:")
    print(f"  {found.command}\n")


def _named(work: "Work") -> dict[str, Any]:
    names = ("scenario", "design", "flavour", "config", "scheduler", "seed")
    return {name: getattr(work, name) for name in names}


def _record(work: "Work", tally: "CampaignTally") -> dict[str, Any]:
    """A campaign as JSON."""
    covered, found = tally.count.coverage, tally.found
    record = _named(work) | {
        "schedules": tally.schedules,
        "steps": tally.steps,
        "redundant": tally.pruned,
        "cut": tally.cut,
        "seconds": round(tally.seconds, 3),
        "exhausted": tally.exhausted,
        "interrupted": tally.interrupted,
        "known": tally.known,
        "coverage": {
            "one_in": work.coverage,
            "edges": len(covered.edges),
            "states": [", ".join(state) for state in sorted(covered.states)],
            "pairs": sorted(covered.pairs),
        },
        "found": None,
    }
    if found is not None:
        record["found"] = {
            "schedule": found.number,
            "violation": str(found.shrunk.violation),
            "steps": found.shrunk.steps,
            "switches": found.shrunk.switches,
            "replay": str(found.address),
        }
    return record
