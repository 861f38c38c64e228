"""``tramp bench``: instructions for each way of attaching, with the figures of real kernels."""

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.commands._options import add_kernel, flavour_help, open_chosen, print_json

if TYPE_CHECKING:
    from trampoline.tools.bench.bench import BenchRow
    from trampoline.tools.kernel.costs import Difference, KernelCosts


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "bench",
        help="count the instructions that an attached program costs",
        description="Instructions from the patch site until control is back, without the traced function's and the"
        " programs' own; beside the figure of real kernel code.",
    )
    add_kernel(parser, several=True)
    parser.add_argument("--way", action="append", dest="ways", metavar="W", help="with --kernel: this way only")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--design", metavar="D", help="one design, or all (default: per-function; with --json all)")
    parser.add_argument("--flavour", metavar="F", help=flavour_help("6.12; with lazy and none 7.2", "all"))
    parser.add_argument(
        "--config", choices=("voluntary", "lazy", "none", "all"), default="voluntary", help="how the kernel is built"
    )
    parser.add_argument(
        "--metadata",
        default="all",
        metavar="M",
        help="padding, hash, flat or all: how designs that have the choice find metadata (default: all)",
    )
    parser.add_argument("--nr-args", type=int, default=1, metavar="N", help="arguments of the traced function, 0 to 12")
    parser.add_argument("--programs", type=int, default=1, metavar="K", help="programs attached")
    parser.add_argument(
        "--program",
        choices=("plain", "full"),
        default="plain",
        help="full ones also read ip, cookie and argument count",
    )
    parser.add_argument(
        "--functions", type=Path, metavar="FILE", help="fentry-multi-all: on every function of this raw BTF"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print the rows; returns the exit status."""
    if arguments.kernels:
        return _bench_kernels(arguments)
    if arguments.ways:
        raise TrampolineError("--way is for real kernels: --kernel PATH")
    from trampoline.bpf.btf.btf import Btf
    from trampoline.designs import DESIGNS
    from trampoline.releases import release, release_names
    from trampoline.tools.bench.bench import DEFAULT_FLAVOUR, DESIGN, bench

    configs = list(DEFAULT_FLAVOUR) if arguments.config == "all" else [arguments.config]
    chosen = arguments.design or ("all" if arguments.json else DESIGN)
    designs = list(DESIGNS) if chosen == "all" else [chosen]
    btf = Btf.read(arguments.functions) if arguments.functions else None
    rows: list[BenchRow] = []
    for config in configs:
        if arguments.flavour == "all":
            flavours = list(release_names())
        else:
            flavours = [release(arguments.flavour or DEFAULT_FLAVOUR[config]).name]
        rows += bench(
            flavours,
            [config],
            designs=designs,
            metadata=arguments.metadata,
            nr_args=arguments.nr_args,
            programs=arguments.programs,
            program=arguments.program,
            btf=btf,
        )
    if arguments.json:
        print_json({"rows": [row.to_json() for row in rows]})
        return 0
    print_rows(rows)
    if len(designs) < len(DESIGNS):
        print("Other designs: --design all, or --design NAME.")
    return 0


def print_rows(rows: "list[BenchRow]") -> None:
    """The rows as tables that fit 80 columns unless a design has a long name, one for each kernel and configuration."""
    first = rows[0]
    wide = max(13, *(len(row.design) + 1 for row in rows))
    for (flavour, config), group in groupby(rows, lambda row: (row.flavour, row.config)):
        what = f"{first.nr_args} argument{'s' * (first.nr_args != 1)}"
        programs = f"{first.programs} {first.program} program{'s' * (first.programs != 1)}"
        print(f"kernel {flavour}, {config}; {what}, {programs}")
        print(
            f"{'':17}{'design':{wide}}{'metadata':9}{'insns':>6}{'anchor':>7}{'ratio':>6}{'further':>8}{'anchor':>7}"
            f"{'unbal.':>7}"
        )
        for row in group:
            if row.error:
                print(f"{row.name:17}{row.design:{wide}}{row.metadata or '-':8} -{row.error}")
                continue
            print(
                f"{row.name:17}{row.design:{wide}}{row.metadata or '-':8}{_number(row.instructions):>7}"
                f"{_number(row.anchor):>7}{_number(row.ratio, '.3f'):>6}{_number(row.further):>8}"
                f"{_number(row.further_anchor):>7}{_number(row.unbalanced_returns):>7}"
            )
        print()
    print("insns: instructions from the patch site until control is back; further: for")
    print("one more program. anchor: measured on real kernel code. unbal.: returns that")
    print("a CPU mispredicts.")


def _number(value: float | None, form: str = "d") -> str:
    return "-" if value is None else format(value, form)


def _bench_kernels(arguments: argparse.Namespace) -> int:
    from trampoline.tools.kernel.costs import costs, differences

    measured: list[KernelCosts] = []
    for path in arguments.kernels:
        with open_chosen(path) as kernel:
            measured.append(costs(kernel, arguments.ways))
    compared = [differences(measured[0], other) for other in measured[1:]]
    if arguments.json:
        print_json(
            {
                "kernels": [one.to_json() for one in measured],
                "differences": [[one.to_json() for one in difference] for difference in compared],
            }
        )
        return 0
    for one in measured:
        print_costs(one)
    for other, difference in zip(measured[1:], compared, strict=True):
        print_differences(measured[0], other, difference)
    print("insns: instructions of a call with one program that returns 0, less those without;")
    print("further: those that a second program adds.")
    return 0


def print_costs(measured: "KernelCosts") -> None:
    """One kernel's rows."""
    print(f"kernel {measured.release} ({measured.path})\n{'':17}{'insns':>6}{'further':>8}")
    for row in measured.rows:
        figures = f"{_number(row.instructions):>6}{_number(row.further):>8}"
        print(f"{row.way:17}" + (f"  {row.refused}" if row.refused else figures))
    print()


def print_differences(base: "KernelCosts", other: "KernelCosts", rows: "list[Difference]") -> None:
    """Instructions more than in the first kernel, with the functions that have them."""
    print(f"{other.release} ({other.path}) less {base.release} ({base.path})\n{'':17}{'insns':>6}{'further':>8}")
    for row in rows:
        if row.instructions is None:
            print(f"{row.way:17}{'-':>6}{'-':>8}")
            continue
        by_function = ", ".join(f"{name} {more:+d}" for name, more in row.by_function.items())
        print(f"{row.way:17}{row.instructions:>+6}{_number(row.further, '+d'):>8}  {by_function}".rstrip())
    print()
