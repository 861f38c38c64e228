"""``tramp step``: trampoline code as it runs, on a full screen or line by line."""

import argparse
from typing import Any

from trampoline.tools.commands._options import add_workload, workload_of
from trampoline.tools.commands._stepping import add_stepping, stepping


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "step",
        help="step through a trampoline, forwards and backwards",
        description="Attach programs to a function, call it, and go through that instruction by instruction: on a full"
        " screen (? shows its keys), or line by line with --plain, which is taken wherever standard input, output or"
        " error is no terminal, or TERM is dumb. Exit status 1 where the guest faulted, with --plain.",
    )
    add_workload(parser)
    add_stepping(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the screen, or print."""
    from trampoline.tools.debugger.terminal.run import step_target

    return step_target(workload_of(arguments), stepping(arguments))
