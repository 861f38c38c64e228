"""Paths that ``tramp count`` counts: from its options, or from the command that made the baseline."""

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as File
from typing import NoReturn

from emu.kernel.config import CONFIGS
from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DESIGNS
from trampoline.lab import Workload
from trampoline.releases import release_names
from trampoline.tools.bench.bench import DEFAULT_FLAVOUR, DESIGN
from trampoline.tools.commands._options import workload_of
from trampoline.tools.commands.count import add_selection
from trampoline.tools.icount.baseline import Baseline
from trampoline.tools.icount.bench_paths import Selection
from trampoline.tools.icount.capture import workload_paths
from trampoline.tools.icount.counted_path import CountedPath
from trampoline.tools.icount.errors import BaselineError

COMMAND = "tramp count"
ALL = "all"


@dataclass(frozen=True)
class Selected:
    """Selection to count. ``made_by``: the command that counts it, with file names relative to the baseline."""

    what: tuple[Selection, ...] | Workload
    made_by: str

    def paths(self) -> dict[str, CountedPath]:
        """Count the paths. Raises what ``Selection.paths`` and ``workload_paths`` raise."""
        if isinstance(self.what, Workload):
            return workload_paths(self.what)
        return {name: path for selection in self.what for name, path in selection.paths().items()}

    def remedy(self, file: File) -> str:
        """The command that rewrites the baseline."""
        return f"{COMMAND} --baseline {shlex.quote(str(file))} --update"


def selected(arguments: argparse.Namespace, baseline: Baseline | None, file: File) -> tuple[Selected, bool]:
    """The selection by the options, or by the baseline's own command; and whether it is the whole baseline.

    Raises BaselineError if the baseline names no command; TrampolineError for options that contradict each other.
    """
    known = baseline.made_by if baseline is not None else ""
    if baseline is not None and not known.startswith(COMMAND):
        raise BaselineError(file, f"made by {known or 'hand'}, not by {COMMAND}: check it there")
    if baseline is not None and not _says_something(arguments):
        return _selected(_parse(known, file), file.parent, file.parent), True
    chosen = _selected(arguments, File(), file.parent)
    return chosen, chosen.made_by == known


def _parse(made_by: str, file: File) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_selection(parser)
    try:
        return parser.parse_args(shlex.split(made_by.removeprefix(COMMAND)))
    except (TrampolineError, ValueError) as error:
        raise BaselineError(file, f"damaged: made by {made_by!r}: {error}") from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise TrampolineError(message)


_OPTIONS = (
    "target", "programs", "calls", "live", "flavour", "design", "config", "sleepable", "func_ip", "session_cookie",
    "cookies", "kernel_btf", "names", "nr_args", "attached", "full",
)  # fmt: skip
_OF_TARGETS = ("programs", "calls", "sleepable", "func_ip", "session_cookie", "cookies", "kernel_btf", "names")
_OF_BENCH = ("nr_args", "attached", "full")
_FLAGS = {"attached": "--programs", "names": "--program", "calls": "--call", "cookies": "--cookie"}


def _says_something(arguments: argparse.Namespace) -> bool:
    return any(getattr(arguments, name) not in (None, False, []) for name in _OPTIONS)


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False, []):
            raise TrampolineError(f"{_FLAGS.get(name, '--' + name.replace('_', '-'))} {what}")


def _selected(arguments: argparse.Namespace, where: File, folder: File) -> Selected:
    """``where``: base of file names in the arguments. ``folder``: the baseline's."""
    _refuse(arguments, ("live",), "is only for stepping")
    if arguments.target is None:
        if arguments.programs:
            raise TrampolineError("programs need a TARGET; the bench's rows attach their own")
        _refuse(arguments, _OF_TARGETS, "is only for a TARGET")
        return _bench(arguments)
    _refuse(arguments, _OF_BENCH, "is only for the bench's rows, without a TARGET")
    arguments.config = arguments.config or "voluntary"
    arguments.design = arguments.design or DESIGN
    if arguments.target.endswith(".o"):
        arguments.target = str(where / arguments.target)
    if arguments.kernel_btf is not None:
        arguments.kernel_btf = where / arguments.kernel_btf
    options = workload_of(arguments)
    return Selected(options, shlex.join([*COMMAND.split(), *_target_words(options, folder)]))


def _target_words(options: Workload, folder: File) -> list[str]:
    def seen(file: str | File) -> str:
        return File(os.path.relpath(file, folder)).as_posix()

    words = [seen(options.target) if options.is_object else str(options.target)]
    words += [f"--{attach.replace('_', '-')}" for attach in options.programs]
    words += [word for call in options.calls or () for word in ("--call", call)]
    words += ["--flavour", options.flavour] if options.flavour else []
    words += ["--config", options.config, "--design", options.design]
    for flag, given in (
        ("--sleepable", options.sleepable),
        ("--func-ip", options.func_ip),
        ("--session-cookie", options.session_cookie),
    ):
        words += [flag] if given else []
    for program, cookie in sorted(options.cookies.items()):
        words += ["--cookie", f"{program}={cookie}" if program else str(cookie)]
    words += ["--kernel-btf", seen(options.kernel_btf)] if options.kernel_btf is not None else []
    words += [word for name in options.names or () for word in ("--program", name)]
    if not all(word.isprintable() for word in words):
        raise TrampolineError("the command must fit on one line of the baseline")
    return words


def _bench(arguments: argparse.Namespace) -> Selected:
    config, design = arguments.config or "voluntary", arguments.design or DESIGN
    configs = list(CONFIGS) if config == ALL else [config]
    nr_args, attached = arguments.nr_args, arguments.attached
    words = ["--config", config, "--design", design, "--nr-args", str(1 if nr_args is None else nr_args)]
    words += ["--programs", str(1 if attached is None else attached), *(["--full"] if arguments.full else [])]
    if arguments.flavour or len(configs) == 1:
        words = ["--flavour", arguments.flavour or DEFAULT_FLAVOUR.get(config, "6.12"), *words]
    selections = []
    for one in configs:
        flavour = arguments.flavour or DEFAULT_FLAVOUR.get(one, "6.12")
        selections.append(
            Selection(
                list(release_names()) if flavour == ALL else [flavour],
                [one],
                list(DESIGNS) if design == ALL else [design],
                [1 if nr_args is None else nr_args],
                [1 if attached is None else attached],
                arguments.full,
            )
        )
    return Selected(tuple(selections), shlex.join([*COMMAND.split(), *words]))


def check_conditions(baseline: Baseline, paths: Mapping[str, CountedPath], file: File) -> None:
    """Raises BaselineError if no path of a baseline was counted on the kernel or design of ``paths``."""
    for key in ("flavour", "config", "design"):
        known = baseline.conditions(key)
        now = {path.conditions[key] for path in paths.values() if key in path.conditions}
        if known and now and not known & now:
            raise BaselineError(
                file, f"this is a baseline of {key} {', '.join(sorted(known))}, not of {', '.join(sorted(now))}"
            )


@contextmanager
def with_remedy(file: File, *, update: bool) -> Iterator[None]:
    """Add a remedy to the error of a missing or unusable baseline."""
    try:
        yield
    except BaselineError as error:
        if error.path != file:
            raise
        if not update:
            hint = f"{COMMAND} --baseline {shlex.quote(str(file))} --update makes it"
            remedy = hint if not file.exists() else f"repair it, or delete it and {hint}"
        else:
            remedy = "it is not overwritten: delete it first, or name another file"
        raise BaselineError(file, f"{error.reason}; {remedy}", error.line) from error
