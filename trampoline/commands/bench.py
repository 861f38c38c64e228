"""``tramp bench``: instructions for each way of attaching, beside what real kernels take."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trampoline.bench import Row


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "bench",
        help="count the instructions that an attached program costs",
        description="Instructions from the patch site until control is back, without the traced function's and the"
        " programs' own; beside the figure of a real kernel.",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--flavour", metavar="F", help="6.1, 6.12, 7.2 or all (default: 6.12; with lazy and none 7.2)")
    parser.add_argument(
        "--config", choices=("voluntary", "lazy", "none", "all"), default="voluntary", help="how the kernel is built"
    )
    parser.add_argument("--nr-args", type=int, default=1, metavar="N", help="arguments of the traced function, 0 to 12")
    parser.add_argument("--programs", type=int, default=1, metavar="K", help="programs attached")
    parser.add_argument(
        "--program",
        choices=("plain", "full"),
        default="plain",
        help="full ones also read ip, cookie and argument count",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from trampoline.bench import DEFAULT_FLAVOUR, bench
    from trampoline.flavour import FLAVOURS, flavour

    configs = list(DEFAULT_FLAVOUR) if arguments.config == "all" else [arguments.config]
    rows: list[Row] = []
    for config in configs:
        if arguments.flavour == "all":
            flavours = list(FLAVOURS)
        else:
            flavours = [flavour(arguments.flavour or DEFAULT_FLAVOUR[config]).name]
        rows += bench(
            flavours, [config], nr_args=arguments.nr_args, programs=arguments.programs, program=arguments.program
        )
    if arguments.json:
        import json

        print(json.dumps({"rows": [row.to_json() for row in rows]}, indent=2))
    else:
        print_rows(rows)
    return 0


def print_rows(rows: "list[Row]") -> None:
    """The rows as a table that fits 80 columns."""
    print(f"{'':9}{'design':14}{'flavour':9}{'config':11}{'args':>5}{'insns':>7}{'kernel':>8}{'ratio':>7}{'unbal.':>8}")
    for row in rows:
        known = f"{row.anchor:8}{row.ratio:7.3f}" if row.anchor else f"{'-':>8}{'-':>7}"
        print(
            f"{row.name:9}{row.design:14}{row.flavour:9}{row.config:11}{row.nr_args:5}{row.instructions:7}{known}"
            f"{row.unbalanced_returns:8}"
        )
    print("\ninsns: instructions from the patch site until control is back.")
    print("kernel: measured on a real kernel. unbal.: returns that a CPU mispredicts.")
