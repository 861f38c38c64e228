"""``tramp golden``: compare generated code and results with recordings of real kernels."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import print_json

if TYPE_CHECKING:
    from trampoline.tools.golden.report import GoldenReport
    from trampoline.tools.golden.trampoline_images import Difference

SHOWN = 5
"""Number of differences that are printed; --json has all."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "golden",
        help="compare with recordings of real kernels",
        description="Regenerate every recorded trampoline, site and call, compile, verify and attach every recorded"
        " program, and compare. Exit status 1 if something differs.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="golden file, JSON lines, gzipped or not")
    parser.add_argument("--json", action="store_true", help="print totals and all differences as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all differences")
    parser.add_argument(
        "--btf",
        type=Path,
        metavar="DIR",
        help="folder of the kernels' BTF, for programs and verdicts: 6.12.btf.xz, ... (default: ../../btf beside"
        " the file)",
    )
    parser.add_argument("--category", default="", metavar="C", help="of verdicts: only this category")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; returns 1 if there is a difference."""
    from trampoline.tools.golden.report import compare_files

    report = compare_files(arguments.files, arguments.btf, arguments.category)
    if arguments.json:
        print_json(report.to_json())
    else:
        print_report(report, len(report.mismatches) if arguments.verbose else SHOWN)
    return 0 if report.agrees else 1


def print_report(report: "GoldenReport", shown: int = SHOWN) -> None:
    """Print totals, then the first ``shown`` differences."""
    print(f"{'':8} {'total':>7} {'identical':>10} {'skipped':>8}")
    for name, totals in (("images", report.images), ("sites", report.sites), ("replay", report.replay)):
        print(f"{name:8} {totals.total:7} {totals.identical:10} {totals.skipped:8}")
    _print_jit(report)
    _print_verdicts(report)
    for difference in report.mismatches[:shown]:
        print()
        print_difference(difference)
    if len(report.mismatches) > shown:
        print(f"\n{len(report.mismatches) - shown} more differences; -v prints them all")


def _print_jit(report: "GoldenReport") -> None:
    """Print compiled functions by category, if a file has them."""
    if report.jit.skipped:
        print(f"{report.jit.skipped} programs are skipped: no BTF of their kernel (--btf names its folder)")
    if not report.jit.total:
        return
    print(f"\n{'jit':14} {'total':>7} {'identical':>10}")
    for category, counts in sorted(report.jit.by_category.items()):
        print(f"{category:14} {counts.total:7} {counts.identical:10}")
    print(f"{'all':14} {report.jit.total:7} {report.jit.identical:10}")


def _print_verdicts(report: "GoldenReport") -> None:
    """Print outcomes of load and attach by category, if a file has them."""
    if not report.verdicts.total:
        return
    print(f"\n{'verdicts':10} {'total':>7} {'agree':>10} {'false accepts':>14} {'unsupported':>12}")
    rows = [*sorted(report.verdicts.by_category.items()), ("all", report.verdicts)]
    for name, counts in rows:
        print(f"{name:10} {counts.total:7} {counts.agree:10} {counts.false_accepts:14} {counts.unsupported:12}")


def print_difference(difference: "Difference") -> None:
    """Print one difference; images as disassembly side by side."""
    print(f"{difference.id}: {difference.what}" + (f", at byte {difference.offset}" if difference.offset >= 0 else ""))
    if difference.what.startswith("image ") and difference.offset >= 0:
        _print_side_by_side(difference)
    else:
        print(f"  recorded  {difference.expected}\n  ours      {difference.got}")


def _print_side_by_side(difference: "Difference") -> None:
    from asm import AsmError, decode

    address = int(difference.what.split()[-1], 16)
    columns = []
    for code in (difference.expected, difference.got):
        try:
            lines = [
                f"{i.address - address:4x} {i.mnemonic} {i.operands}" for i in decode(bytes.fromhex(code), address)
            ]
        except AsmError as error:
            lines = [str(error)]
        columns.append(lines)
    left, right = columns
    first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    print(f"  {'recorded':54}   ours")
    for i in range(max(first - 2, 0), min(first + 6, max(len(left), len(right)))):
        a, b = (column[i] if i < len(column) else "" for column in columns)
        print(f"{' ' if a == b else '*'} {a:54}   {b}")
