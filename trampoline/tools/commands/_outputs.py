"""Options of commands that write what they recorded."""

import argparse
from pathlib import Path

_FORMATS = ("html", "speedscope", "chrome", "callgrind", "collapsed")


def add_outputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Where it is written, and in which format."""
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=None if required else [],
        required=required,
        type=Path,
        metavar="FILE",
        help="write the recording in the format that the name asks for; may be given again",
    )
    parser.add_argument("--format", choices=_FORMATS, help="of every FILE, whatever its name")
