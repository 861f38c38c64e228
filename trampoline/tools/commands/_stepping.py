"""Common options of ``tramp step`` and ``tramp replay --step``: screen or lines."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trampoline.tools.commands._options import whole

if TYPE_CHECKING:
    from trampoline.tools.debugger.terminal.run import Stepping


def add_stepping(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add options for the display and for initial commands."""
    parser.add_argument("--plain", action="store_true", help="no screen: print every instruction on a line")
    parser.add_argument(
        "--max", type=whole("number"), metavar="N", help="print N instructions at most (implies --plain)"
    )
    parser.add_argument("--phase", metavar="P", help="print the instructions of this phase only (implies --plain)")
    parser.add_argument(
        "--ex", action="append", default=[], dest="commands", metavar="COMMAND",
        help="run this first, as on the command line of the screen ('to program; s 5'); with --plain: run this, and"
        " print the result; may be given again",
    )  # fmt: skip
    parser.add_argument("-x", dest="script", metavar="FILE", help="the same from a file, by lines; - is standard input")
    parser.add_argument(
        "--screenshot", type=Path, metavar="FILE", help="write the screen after the commands as a picture (SVG)"
    )
    parser.add_argument(
        "--size", type=_size, default=(120, 40), metavar="WxH", help="of the screenshot (default: 120x40 characters)"
    )


def stepping_given(arguments: argparse.Namespace) -> str:
    """The first of these options that was given, as on the command line; empty if none was."""
    given = {
        "--plain": arguments.plain,
        "--max": arguments.max is not None,
        "--phase": arguments.phase,
        "--ex": arguments.commands,
        "-x": arguments.script,
        "--screenshot": arguments.screenshot,
    }
    return next((option for option, is_given in given.items() if is_given), "")


def stepping(arguments: argparse.Namespace) -> "Stepping":
    """Options of the display. Raises TrampolineError if they contradict each other."""
    from trampoline.tools.debugger.terminal.run import Stepping

    return Stepping(
        plain=arguments.plain,
        most=arguments.max,
        phase=arguments.phase,
        commands=tuple(arguments.commands),
        script=arguments.script,
        screenshot=arguments.screenshot,
        size=arguments.size,
    )


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (f"{width}{height}".isascii() and width.isdigit() and height.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; pass WxH, as 120x40")
    return int(width), int(height)
