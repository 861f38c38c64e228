"""``tramp show``: the annotated listing of a trampoline."""

import argparse
from typing import Any

from trampoline.tools.commands._flavour import flavour_help


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "show",
        help="print the listing of what a traced function calls",
        description="Generate the trampoline of a function of the synthetic kernel, or of a prototype of your own, and"
        " print it with comments and phases. Programs are attached in the order given.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help="a function (bpf_fentry_test1) or a C prototype ('int f(int a)')"
    )
    for flag, attach in (
        ("--fentry", "fentry"),
        ("--fexit", "fexit"),
        ("--fmod-ret", "fmod_ret"),
        ("--fsession", "fsession"),
        ("--lsm", "lsm"),
    ):
        parser.add_argument(
            flag, dest="programs", action="append_const", const=attach, help=f"attach an {attach} program"
        )
    parser.add_argument("--flavour", metavar="F", default="6.12", help=flavour_help("6.12"))
    parser.add_argument("--design", metavar="D", default="per-function", help="any design (default: per-function)")
    parser.add_argument("--config", metavar="C", default="voluntary", help="voluntary (default), lazy or none")
    parser.add_argument("--sleepable", action="store_true", help="the programs are sleepable")
    parser.add_argument("--func-ip", action="store_true", help="the programs ask for bpf_get_func_ip")
    parser.add_argument("--session-cookie", action="store_true", help="fsession programs use their cookie")
    parser.add_argument("--cookie", type=lambda text: int(text, 0), default=0, metavar="N", help="cookie of every link")
    parser.add_argument("--return-thunk", action="store_true", help="returns go through a thunk")
    parser.add_argument("--call-depth", action="store_true", help="calls are accounted (retbleed=stuff)")
    parser.add_argument("--json", action="store_true", help="print bytes, lines and symbols as JSON")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: on a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Attach, and print the image."""
    import sys

    from trampoline.tools.show.trampoline import show

    shown = show(
        arguments.target,
        arguments.programs or ["fentry"],
        flavour=arguments.flavour,
        sleepable=arguments.sleepable,
        func_ip=arguments.func_ip,
        session_cookie=arguments.session_cookie,
        cookie=arguments.cookie,
        return_thunk=arguments.return_thunk,
        call_depth=arguments.call_depth,
        design=arguments.design,
        config=arguments.config,
    )
    if arguments.json:
        import json

        print(json.dumps(shown.to_json(), indent=2))
        return 0
    color = arguments.color == "always" or (arguments.color == "auto" and sys.stdout.isatty())
    print(shown.text(color=color))
    return 0
