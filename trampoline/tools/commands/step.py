"""``tramp step``: step through trampoline code, on a full screen or line by line."""

import argparse
from typing import Any

from trampoline.tools.commands._options import add_workload, workload_of
from trampoline.tools.commands._stepping import add_stepping, stepping


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "step",
        help="step through a trampoline, forwards and backwards",
        description="Attach programs to a function, call it, and step through the call: on a full screen (? shows its"
        " keys), or line by line with --plain, the default if standard input, output or error is not a terminal, or"
        " TERM is dumb. Exit status 1 if the guest faulted, with --plain.",
    )
    add_workload(parser)
    add_stepping(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the screen, or print lines; returns the exit status."""
    from trampoline.tools.debugger.terminal.run import step_target

    return step_target(workload_of(arguments), stepping(arguments))
