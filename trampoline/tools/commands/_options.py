"""Common options of several commands: kernel, workload, outputs, numbers."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.releases import release_names

if TYPE_CHECKING:
    from trampoline.lab import Workload
    from trampoline.lab.own_kernel import OwnKernel

_ATTACH = ("fentry", "fexit", "fmod_ret", "fsession", "lsm")
_FORMATS = ("html", "speedscope", "chrome", "callgrind", "collapsed")
ARGUMENTS = "arguments are numbers, \"text\", &number (a pointer to it), {2, 3} (a struct's words)"


def flavour_help(default: str, *more: str) -> str:
    """The kernel releases, ``more`` values that an option takes, and its default, as help text."""
    *some, last = (*release_names(), *more)
    return f"{', '.join(some)} or {last} (default: {default})"


def add_flavour(parser: argparse.ArgumentParser, default: str | None = "6.12", described: str = "") -> None:
    """Add the option for the kernel release. ``described``: its default, in words."""
    parser.add_argument("--flavour", metavar="F", default=default, help=flavour_help(described or str(default)))


def add_kernel(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """A real kernel instead of the synthetic one."""
    what = "a real kernel: vmlinuz, vmlinux or an unpacked package"
    if several:
        parser.add_argument(
            "--kernel", action="append", dest="kernels", type=Path, metavar="PATH", help=f"{what}; may be given again"
        )
        return
    parser.add_argument("--kernel", type=Path, metavar="PATH", help=f"{what}, or a memory image (ELF core, kdump)")
    add_image(parser)


def add_image(parser: argparse.ArgumentParser) -> None:
    """The CPU and the task of a memory image."""
    parser.add_argument("--cpu", type=whole("CPU"), default=0, metavar="N", help="of a memory image: the CPU")
    parser.add_argument("--task", metavar="TASK", help="of a memory image: pid or name of the task to make current")


def open_chosen(path: Path, cpu: int = 0, task: str | None = None) -> "OwnKernel":
    """Open a kernel; ``task``: a pid or a name. What ``open_kernel`` raises."""
    from trampoline.lab.own_kernel import open_kernel

    return open_kernel(path, cpu=cpu, task=int(task) if task is not None and task.isdecimal() else task)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the kernel configuration."""
    parser.add_argument("--config", metavar="C", default="voluntary", help="voluntary (default), lazy or none")


def add_design(parser: argparse.ArgumentParser) -> None:
    """Add the option for the design that attaches programs."""
    parser.add_argument("--design", metavar="D", default="per-function", help="any design (default: per-function)")


def add_programs(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add options for programs to attach to a function, in order, and their features."""
    for attach in _ATTACH:
        parser.add_argument(
            f"--{attach.replace('_', '-')}",
            dest="programs",
            action="append_const",
            const=attach,
            help=f"attach an {attach} program{note}",
        )
    parser.add_argument("--sleepable", action="store_true", help="the programs are sleepable")
    parser.add_argument("--func-ip", action="store_true", help="the programs call bpf_get_func_ip")
    parser.add_argument("--session-cookie", action="store_true", help="fsession programs use their cookie")


def add_of_object(parser: argparse.ArgumentParser, of: str = "") -> None:
    """Add options for the kernel's types, and for the selection of an object's programs."""
    parser.add_argument(
        "--kernel-btf", type=Path, metavar="BTF", help="a BTF, raw or packed: the kernel then has all functions in it"
    )
    parser.add_argument(
        "--program", action="append", dest="names", metavar="NAME", help=f"{of}this program only; may be given again"
    )


def add_workload(parser: argparse.ArgumentParser, *, optional: bool = False, live: bool = True) -> None:
    """Add options for the target, its programs, the calls and the kernel.

    ``optional``: the target may be left out. ``live``: programs may be attached while the calls run.
    """
    parser.add_argument(
        "target",
        nargs="?" if optional else None,
        metavar="TARGET",
        help="a function (bpf_fentry_test1), a C prototype ('int f(int a)') or an object (*.o)",
    )
    add_programs(parser, " (not with an object, which has sections)")
    parser.add_argument(
        "--call",
        action="append",
        dest="calls",
        metavar="CALL[@CPU]",
        help="a call, 'bpf_fentry_test2(2, 3)', each a thread on a CPU of its own or on the one given;"
        f" {ARGUMENTS}; default: one of TARGET",
    )
    if live:
        parser.add_argument(
            "--live",
            action="store_true",
            help="attach while the calls run: each attach is a thread to step through",
        )
    add_flavour(parser, None, "6.12; with an object 7.2")
    add_design(parser)
    add_config(parser)
    parser.add_argument(
        "--cookie",
        action="append",
        default=[],
        dest="cookies",
        type=_cookie,
        metavar="[PROGRAM=]N",
        help="cookie of every link; with an object of a program's link",
    )
    add_of_object(parser, "of an object: ")


def workload_of(arguments: argparse.Namespace, **others: Any) -> "Workload":
    """The workload from the options and ``others``; defaults for options that a command lacks."""
    from trampoline.lab import Workload

    given = {name: value for name, value in vars(arguments).items() if name in Workload.__dataclass_fields__} | others
    for name in ("programs", "calls", "names"):
        given[name] = None if given.get(name) is None else tuple(given[name])
    given["programs"] = given["programs"] or ()
    given["cookies"] = dict(given.get("cookies", ()))
    return Workload(**given)


def add_outputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add options for the files of a recording, and their format."""
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=None if required else [],
        required=required,
        type=Path,
        metavar="FILE",
        help="write the recording in the format of the file name's ending; may be given again",
    )
    parser.add_argument("--format", choices=_FORMATS, help="format of every FILE, instead of its ending")


def number(text: str) -> int:
    """Parse a number in C's notation. Raises ArgumentTypeError."""
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def whole(what: str, least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """Make a parser of decimal numbers from ``least`` to ``most``; ``what`` names them in its error."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text)) or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Parse a duration above 0: ``60s``, ``2m``, ``1h``, or a number of seconds. Raises ArgumentTypeError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; pass 60s or 2m")
    return value


def print_json(value: object) -> None:
    """Print plain values as JSON."""
    import json

    print(json.dumps(value, indent=2))


def _cookie(text: str) -> tuple[str, int]:
    program, _, value = text.rpartition("=")
    return program, number(value)
