"""The `tramp` command: finds the subcommands, runs one, and converts exceptions to exit statuses.

0: success, no differences. 1: differences found. 2: wrong usage or unusable input. 3: a path is longer than its
baseline. No traceback is printed; with TRAMP_TRACEBACK set in the environment the exception is raised instead.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from trampoline import TrampolineError, __version__
from trampoline.tools import commands

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

DONE, DIFFERENT, UNUSABLE = 0, 1, 2
INTERRUPTED = 128 + 2  # as a shell reports SIGINT
READER_GONE = 128 + 13  # and SIGPIPE


class Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage in one line with exit status 2, and takes no abbreviations."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        """Print `message` on one line of stderr and leave with status 2."""
        self.exit(UNUSABLE, f"{self.prog}: {_one_line(message)} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        # argparse's own method would ignore a failing output.
        (file or sys.stderr).write(message)


def subcommands() -> list[str]:
    """Names of the subcommands: the modules of `trampoline.tools.commands`, with dashes for underscores."""
    modules = pkgutil.iter_modules(commands.__path__)
    return sorted(module.name.replace("_", "-") for module in modules if module.name[0] != "_")


def subcommand(name: str) -> ModuleType:
    """The module of a subcommand."""
    return importlib.import_module(f"{commands.__name__}.{name.replace('-', '_')}")


def build_parser(names: Iterable[str] | None = None) -> Parser:
    """The parser of the command with these subcommands, by default all. Its arguments have the chosen one's `run`."""
    parser = Parser(
        prog="tramp", description="Generate, run and count the machine code that runs BPF programs on kernel functions."
    )
    parser.add_argument("--version", action="version", version=f"tramplab {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name in subcommands() if names is None else names:
        module = subcommand(name)
        module.add_parser(subparsers)
        subparsers.choices[name].set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tramp` with `argv` (default: the process's arguments); returns the exit status."""
    try:
        status = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except OSError as error:
        _drop_output()
        print(f"tramp: {_one_line(_describe(error))}", file=sys.stderr)
        return UNUSABLE
    return status


def _drop_output() -> None:
    # Python flushes stdout again on exit: that must not fail a second time.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _run(argv: Sequence[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    # Making a parser takes 1 to 2 ms: only --help and unknown commands need all of them.
    names = argv[:1] if argv and argv[0] in subcommands() else None
    try:
        arguments = build_parser(names).parse_args(argv)
    except SystemExit as left:  # after --help, --version or an error
        return left.code if isinstance(left.code, int) else UNUSABLE
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        is_output = isinstance(error, OSError) and error.filename is None
        if is_output or os.environ.get("TRAMP_TRACEBACK"):
            raise
        print(f"tramp {arguments.command}: {_one_line(_describe(error))}", file=sys.stderr)
        return UNUSABLE


def _describe(error: Exception) -> str:
    # Imported here, to save the time if there is no error.
    from asm import AsmError
    from emu.errors import EmuError

    if isinstance(error, TrampolineError | EmuError | AsmError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return f"unexpected {type(error).__name__}: {error} (TRAMP_TRACEBACK=1 in the environment shows the traceback)"


def _one_line(message: str) -> str:
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())
