"""Options that ``tramp step``, ``tramp gdb`` and ``tramp count`` have in common: what is looked at, and its calls."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trampoline.tools.commands._flavour import flavour_help

if TYPE_CHECKING:
    from trampoline.lab.workload import TargetOptions

_ATTACH = ("fentry", "fexit", "fmod_ret", "fsession", "lsm")


def add_target(parser: argparse.ArgumentParser, *, optional: bool = False, live: bool = True) -> None:
    """The target, its programs, the calls, and the kernel under them.

    ``optional``: it may be left out. ``live``: programs may be attached while the calls run.
    """
    parser.add_argument(
        "target",
        nargs="?" if optional else None,
        metavar="TARGET",
        help="a function (bpf_fentry_test1), a C prototype ('int f(int a)') or an object (*.o)",
    )
    for attach in _ATTACH:
        parser.add_argument(
            f"--{attach.replace('_', '-')}",
            dest="programs",
            action="append_const",
            const=attach,
            help=f"attach an {attach} program (not with an object, whose sections say it)",
        )
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        dest="calls",
        metavar="CALL[@CPU]",
        help="a call, 'bpf_fentry_test2(2, 3)', each a thread on a CPU of its own or on the one given; arguments are"
        ' numbers, "text", &number (a pointer to it), {2, 3} (a struct\'s words); default: one of TARGET',
    )
    parser.set_defaults(live=False)
    if live:
        parser.add_argument(
            "--live",
            action="store_true",
            help="attach while the calls run: each attach is a thread, to be stepped as well",
        )
    parser.add_argument("--flavour", metavar="F", help=flavour_help("6.12; with an object 7.2"))
    parser.add_argument("--design", metavar="D", default="per-function", help="any design (default: per-function)")
    parser.add_argument("--config", metavar="C", default="voluntary", help="voluntary (default), lazy or none")
    parser.add_argument("--sleepable", action="store_true", help="the programs are sleepable")
    parser.add_argument("--func-ip", action="store_true", help="the programs ask for bpf_get_func_ip")
    parser.add_argument("--session-cookie", action="store_true", help="fsession programs use their cookie")
    parser.add_argument(
        "--cookie",
        action="append",
        default=[],
        dest="cookies",
        type=_cookie,
        metavar="[PROGRAM=]N",
        help="cookie of every link; with an object of a program's link",
    )
    parser.add_argument(
        "--kernel-btf", type=Path, metavar="BTF", help="a BTF, raw or packed: the kernel then has all functions in it"
    )
    parser.add_argument(
        "--program", action="append", dest="names", metavar="NAME", help="of an object: this program only, and again"
    )


def target_options(arguments: argparse.Namespace) -> "TargetOptions":
    """What these options say. TrampolineError where they contradict each other."""
    from trampoline.lab.workload import TargetOptions

    return TargetOptions(
        target=arguments.target,
        programs=tuple(arguments.programs or ()),
        calls=tuple(arguments.calls),
        live=arguments.live,
        flavour=arguments.flavour,
        design=arguments.design,
        config=arguments.config,
        sleepable=arguments.sleepable,
        func_ip=arguments.func_ip,
        session_cookie=arguments.session_cookie,
        cookies=dict(arguments.cookies),
        kernel_btf=arguments.kernel_btf,
        names=tuple(arguments.names) if arguments.names else None,
    )


def _cookie(text: str) -> tuple[str, int]:
    program, _, value = text.rpartition("=")
    try:
        number = int(value, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no number") from None
    return program, number
