"""``tramp replay``: run one schedule again."""

import argparse
from typing import Any

from trampoline import TrampolineError
from trampoline.tools.commands._options import add_outputs
from trampoline.tools.commands._stepping import add_stepping, stepping, stepping_given


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "replay",
        help="run one schedule that tramp explore found",
        description="Run the schedule that STRING names, twice, and print it, a line per event and a column per actor.",
    )
    parser.add_argument("schedule", metavar="STRING", help="schedule that tramp explore printed")
    parser.add_argument("--short", action="store_true", help="leave out the middle of long stretches")
    parser.add_argument("--svg", metavar="FILE", help="write the report as a picture")
    parser.add_argument("--step", action="store_true", help="step through it, as in tramp step")
    add_stepping(parser.add_argument_group("with --step"))
    add_outputs(parser, required=False)


def run(arguments: argparse.Namespace) -> int:
    """Replay the schedule and print it; returns 1 for a violation."""
    if arguments.step:
        return _step(arguments)
    if given := stepping_given(arguments):
        raise TrampolineError(f"{given} is only for --step")
    from emu.schedule.report import report, used_columns
    from trampoline.tools.explore.schedule_id import ScheduleAddress
    from trampoline.tools.explore.session import ScheduleSession
    from trampoline.tools.report.formats import write_recording, writers

    address = ScheduleAddress.parse(arguments.schedule)
    outputs = writers(arguments.output, arguments.format)
    with ScheduleSession(
        address.scenario, address.design, address.flavour, address.config, dropped=address.dropped, counting="auto"
    ) as session:
        first = session.replay(address.schedule)
        trace, counts = session.trace(first), session.instructions()
        second = session.replay(address.schedule)
        if session.trace(second) != trace or session.instructions() != counts:
            raise TrampolineError("the same schedule ran differently the second time")
        found = used_columns(report(session.world, second))
        if arguments.short or arguments.svg:
            found = found.shortened()
        text = found.text()
        print(text)
        print(f"\n{second.steps} steps, {second.switches} switches; instructions: " + ", ".join(
            f"{count} on cpu {cpu}" for cpu, count in enumerate(counts)))  # fmt: skip
        if arguments.svg:
            _picture(text, arguments.svg, address)
        if outputs:
            write_recording(outputs, session.record(address.schedule), f"tramp replay {address}")
        return 1 if second.violation is not None else 0


def _step(arguments: argparse.Namespace) -> int:
    from trampoline.tools.debugger.terminal.run import step_schedule

    if arguments.short or arguments.svg or arguments.output:
        raise TrampolineError("--short, --svg and --output: not with --step, which has --screenshot")
    return step_schedule(arguments.schedule, stepping(arguments))


def _picture(text: str, path: str, address: object) -> None:
    """Write the text as an SVG."""
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=max(map(len, text.splitlines())) + 2, file=io.StringIO())
    for line in text.splitlines():
        console.print(Text(line, style="bold red" if line.endswith("<<<") else ""))
    console.save_svg(path, title=f"tramp replay {address}")
