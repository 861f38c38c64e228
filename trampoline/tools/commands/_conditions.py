"""Common options of ``tramp attach`` and ``tramp scale``."""

import argparse
from pathlib import Path
from typing import Any

from trampoline.tools.commands._options import add_flavour


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add options for the kernel and the conditions of an attach."""
    parser.add_argument(
        "--functions", type=Path, metavar="FILE", help="take every function of this raw BTF, packed or not"
    )
    add_flavour(parser)
    parser.add_argument("--cookies", action="store_true", help="each function has its own cookie")
    parser.add_argument(
        "--gp-ms",
        type=_durations,
        metavar="RCU,TASKS,TRACE[,SRCU]",
        help="virtual milliseconds of each kind of grace period (default: 10,100,20,20)",
    )
    parser.add_argument(
        "--ipi-us",
        type=_microseconds,
        default=5_000,
        metavar="T",
        help="virtual microseconds of a round of IPIs to all CPUs (default: 5)",
    )
    parser.add_argument(
        "--check",
        type=int,
        default=1000,
        metavar="N",
        help="call one function in N before, attached and after, and check it; 0 for none (default: 1000)",
    )


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``trampoline.tools.scale.mass_attach.Conditions`` from these options."""
    durations = None
    if arguments.gp_ms:
        from emu.kernel.rcu import RcuFlavour

        durations = dict(zip(RcuFlavour, arguments.gp_ms, strict=False))
    return {
        "flavour": arguments.flavour,
        "cookies": arguments.cookies,
        "durations": durations,
        "ipi_ns": arguments.ipi_us,
        "check": arguments.check,
    }


def _microseconds(text: str) -> int:
    return _nanoseconds(text, 1_000)


def _nanoseconds(text: str, unit: int) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration")
    return round(value * unit)


def _durations(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) not in (3, 4):
        raise argparse.ArgumentTypeError(f"{text!r} is not three or four durations, separated by commas")
    return [_nanoseconds(part, 1_000_000) for part in parts]
