"""``tramp show``: the annotated listing of a trampoline."""

import argparse
from typing import Any

from trampoline.tools.commands._options import (
    add_config,
    add_design,
    add_flavour,
    add_programs,
    number,
    print_json,
    workload_of,
)


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "show",
        help="print the listing of a function's trampoline",
        description="Generate the trampoline of a function of the synthetic kernel, or of your own prototype, and"
        " print it with comments and phases. Programs are attached in the order given.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help="a function (bpf_fentry_test1) or a C prototype ('int f(int a)')"
    )
    add_programs(parser)
    add_flavour(parser)
    add_design(parser)
    add_config(parser)
    parser.add_argument("--cookie", type=number, default=0, metavar="N", help="cookie of every link")
    parser.add_argument("--return-thunk", action="store_true", help="returns go through a thunk")
    parser.add_argument("--call-depth", action="store_true", help="calls are accounted (retbleed=stuff)")
    parser.add_argument("--json", action="store_true", help="print bytes, lines and symbols as JSON")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: on a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Attach and print the image."""
    import sys

    from trampoline.tools.show.trampoline import show

    workload = workload_of(arguments, cookies={"": arguments.cookie})
    shown = show(workload, return_thunk=arguments.return_thunk, call_depth=arguments.call_depth)
    if arguments.json:
        print_json(shown.to_json())
        return 0
    color = arguments.color == "always" or (arguments.color == "auto" and sys.stdout.isatty())
    print(shown.text(color=color))
    return 0
