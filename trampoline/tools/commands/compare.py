"""``tramp compare``: correlation of published speed with instructions and unbalanced returns."""

import argparse
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import add_flavour, print_json

if TYPE_CHECKING:
    from trampoline.tools.bench.published_speed import SpeedComparison


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "compare",
        help="compare instructions with the speed that was published with the tracing-multi series",
        description="The table published with the tracing-multi series, in millions of calls a second, next to the"
        " instructions and unbalanced returns of each path, with the rank correlation. A path that cannot be run here"
        " has the instructions that were counted on real kernel code.",
    )
    parser.add_argument(
        "--design", default="tracing-multi-v2", metavar="D", help="design of the multi rows (default: tracing-multi-v2)"
    )
    add_flavour(parser)
    parser.add_argument("--json", action="store_true", help="print paths and correlations as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Count and print the comparison."""
    from trampoline.tools.bench.published_speed import compare

    comparison = compare(design=arguments.design, flavour=arguments.flavour)
    if arguments.json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison)
    return 0


def print_comparison(comparison: "SpeedComparison") -> None:
    """Print the paths from fast to slow, then the correlations."""
    print(f"kernel {comparison.flavour}, {comparison.config}\n")
    print(f"{'':18}{'design':14}{'args':>4}{'M/s':>10}{'ns':>8}{'insns':>7}{'unbal.':>8}{'charged':>9}")
    for path in sorted(comparison.paths, key=lambda path: -path.mps):
        print(
            f"{path.name:18}{path.design or '-':14}{_shown(path.nr_args):>4}{path.mps:10.3f}{1000 / path.mps:8.2f}"
            f"{_shown(path.instructions):>7}{_shown(path.unbalanced_returns):>8}{_shown(path.charged, '.0f'):>9}"
        )
    print(f"\n{'rank correlation with time':32}{'insns':>8}{'charged':>9}")
    for group, label in (("all", "all paths"), ("entry", "entry side"), ("trampolines", "trampolines")):
        print(f"{label:32}{comparison.ranks[group]:8.3f}{comparison.charged_ranks[group]:9.3f}")
    print("\nM/s: as published. insns: counted here where there is a design, else on real")
    print("kernel code. charged: an unbalanced return counts as much as it takes,")
    print(f"{comparison.charge:.0f} instructions.")


def _shown(value: float | None, form: str = "d") -> str:
    return "-" if value is None else format(value, form)
