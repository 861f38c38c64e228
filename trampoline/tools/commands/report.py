"""``tramp report``: the cost of calls, as a page or as a file for another tool."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import add_outputs, add_workload, workload_of

if TYPE_CHECKING:
    from trampoline.lab import Workload
    from trampoline.tools.icount.baseline import BaselineEntry


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "report",
        help="write the cost of calls as a page, or for Perfetto, KCachegrind, speedscope, flame graph tools",
        description="Attach programs, make the calls, record them, and write each FILE in the format of its name's"
        " ending: an HTML page (*.html), Chrome's trace format for Perfetto (*.json), speedscope"
        " (*.speedscope.json), callgrind (*.callgrind, callgrind.*; its listing is written next to it), collapsed"
        " stacks (*.collapsed, *.folded).",
    )
    add_workload(parser, optional=True, live=False)
    add_outputs(parser, required=True)
    parser.add_argument(
        "--bench", action="store_true", help="the rows of tramp bench instead of a target, as a page"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="D",
        help="a design, or a kernel (7.2), to compare with; all: every design; may be given again (html only)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="a baseline of tramp count to compare with (html only)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Record and write the files."""
    from emu.atomic_file import write_whole
    from trampoline.bpf.errors import TrampolineError
    from trampoline.tools.report.formats import baseline_of, format_of, texts

    forms = [(path, format_of(path, arguments.format)) for path in arguments.output]
    files: dict[Path, str] = {}
    if arguments.bench:
        if arguments.target is not None or not all(form.is_page for _, form in forms):
            raise TrampolineError("--bench: without a TARGET, and to an html file only")
        files = dict.fromkeys(arguments.output, _bench(arguments))
    elif arguments.target is None:
        raise TrampolineError("no target; pass a TARGET or --bench")
    else:
        from trampoline.tools.report.observed_calls import observe_all

        stacks = any(form.is_page for _, form in forms)
        variants = observe_all(_variants(workload_of(arguments), arguments.compare), stacks=stacks)
        known: Mapping[str, BaselineEntry] = {}
        if arguments.baseline is not None:
            known = baseline_of(arguments.baseline, {call.name for call in variants[0].calls})
        for path, form in forms:
            files.update(texts(path, form, variants, known))
    write_whole(files)
    return 0


def _variants(first: "Workload", compare: list[str]) -> "list[Workload]":
    """The workload, and its variants for comparison."""
    from dataclasses import replace

    variants = [first]
    designs, flavours = _compared(compare, first.design)
    variants += [replace(first, design=design) for design in designs]
    variants += [replace(first, flavour=flavour) for flavour in flavours]
    return variants


def _compared(compare: list[str], design: str) -> tuple[list[str], list[str]]:
    """The designs and the kernels of ``--compare``. Raises TrampolineError for an unknown name."""
    from trampoline.bpf.errors import TrampolineError
    from trampoline.designs import DESIGNS
    from trampoline.releases import release_names

    designs: list[str] = []
    for name in compare:
        if name == "all":
            designs += [one for one in DESIGNS if one not in (design, *designs)]
        elif name in DESIGNS:
            designs.append(name)
        elif name not in release_names():
            raise TrampolineError(f"no design or kernel {name!r}; there are {', '.join((*DESIGNS, *release_names()))}")
    return designs, [name for name in compare if name in release_names()]


def _bench(arguments: argparse.Namespace) -> str:
    from trampoline.tools.bench.bench import DEFAULT_FLAVOUR, bench
    from trampoline.tools.report.bench_page import baseline_name, bench_page
    from trampoline.tools.report.formats import baseline_of

    designs, flavours = _compared(arguments.compare, arguments.design)
    flavour = arguments.flavour or DEFAULT_FLAVOUR.get(arguments.config, "6.12")
    rows = bench([flavour, *flavours], [arguments.config], designs=[arguments.design, *designs])
    known: Mapping[str, BaselineEntry] = {}
    if arguments.baseline is not None:
        known = baseline_of(arguments.baseline, {baseline_name(row) for row in rows})
    return bench_page(rows, known)
