"""``tramp scale``: cost of attaching to ten, a hundred, ... and all functions, for every design."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._conditions import add_conditions, conditions

if TYPE_CHECKING:
    from trampoline.tools.scale.scale import Scale


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "scale",
        help="measure how attaching scales with the number of functions",
        description="Attach one program to increasing numbers of functions and detach it, for each design. Writes"
        " scale.txt, scale.json and scale.svg, and prints the table.",
    )
    parser.add_argument("--designs", default="all", metavar="D,...", help="designs, separated by commas (default: all)")
    parser.add_argument(
        "--points",
        type=_points,
        default="10,100,1000,10000,all",
        metavar="N,...",
        help="numbers of functions, separated by commas (default: 10,100,1000,10000,all)",
    )
    parser.add_argument(
        "--seconds-per-point",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="skip a design's larger points after one that took longer (default: 60)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("scale"), metavar="DIR", help="folder of the files (default: scale)"
    )
    add_conditions(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; returns 1 if the check of a function failed."""
    import json

    from rich.console import Console
    from rich.progress import Progress

    from trampoline.bpf.btf.btf import Btf
    from trampoline.designs import DESIGNS
    from trampoline.extras import extra
    from trampoline.tools.scale.plot import svg
    from trampoline.tools.scale.scale import scale

    designs = list(DESIGNS) if arguments.designs == "all" else list(dict.fromkeys(arguments.designs.split(",")))
    btf = Btf.read(arguments.functions) if arguments.functions else None
    # A missing package must be reported before minutes of measurement.
    with extra("plot", "scale.svg"):
        import matplotlib.figure  # noqa: F401
    arguments.output.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("", total=None)
        measured = scale(
            designs,
            arguments.points,
            btf=btf,
            seconds_per_point=arguments.seconds_per_point,
            progress=lambda what, done, of: bars.update(task, description=what, completed=done, total=of),
            **conditions(arguments),
        )
    table = "\n".join(table_lines(measured)) + "\n"
    (arguments.output / "scale.txt").write_text(table)
    (arguments.output / "scale.json").write_text(json.dumps(measured.to_json(), indent=2) + "\n")
    (arguments.output / "scale.svg").write_bytes(svg(measured))
    print(table, end="")
    return 1 if measured.wrong else 0


def table_lines(scale: "Scale") -> Iterator[str]:
    """One line for each point, attach / detach."""
    yield f"one program on many functions, kernel {scale.flavour}; attach / detach"
    yield ""
    yield (
        f"{'design':17}{'functions':>9}{'wall time (s)':>19}{'virtual time (s)':>21}{'text writes':>18}"
        f"{'IPIs':>18}{'grace periods':>16}{'bytes/func':>12}"
    )
    for point in scale.points:
        attach, detach = point.attach, point.detach
        yield (
            f"{point.design:17}{point.functions:9}"
            f"{f'{attach.wall_seconds:.3f} / {detach.wall_seconds:.3f}':>19}"
            f"{f'{attach.virtual_seconds:.3f} / {detach.virtual_seconds:.3f}':>21}"
            f"{f'{attach.text_writes} / {detach.text_writes}':>18}"
            f"{f'{attach.ipis} / {detach.ipis}':>18}"
            f"{f'{attach.grace_periods} / {detach.grace_periods}':>16}"
            f"{attach.memory_bytes / max(point.functions, 1):12.1f}"
        )
    for left_out in scale.left_out:
        yield f"{left_out.design:17}{left_out.functions:9} left out: {left_out.why}"
    yield ""
    checked = sum(point.checked for point in scale.points)
    wrong = sorted({f"{point.design}: {name}" for point in scale.points for name in point.wrong})
    yield f"{checked} functions called before, attached and after: " + (", ".join(wrong) or "all right")


def _points(text: str) -> list[int | None]:
    points: list[int | None] = []
    for part in text.split(","):
        if part != "all" and not (part.isascii() and part.isdigit() and int(part)):
            raise argparse.ArgumentTypeError(f"{part!r} is neither a number of functions nor 'all'")
        points.append(None if part == "all" else int(part))
    return points


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
