"""``tramp attach``: one program on many functions, and the cost."""

import argparse
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._conditions import add_conditions, conditions
from trampoline.tools.commands._options import print_json

if TYPE_CHECKING:
    from trampoline.tools.scale.mass_attach import MassAttach


KINDS = ("fentry", "fexit", "fmod_ret", "fsession")
"""Kinds of programs that a multi link accepts."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "attach",
        help="measure the cost of attaching one program to many functions",
        description="Attach a program to every function that GLOB matches, all or none, and detach it again."
        " Functions that cannot be traced are left out and counted by error code.",
    )
    parser.add_argument("glob", metavar="GLOB", help="functions, as 'tcp_*'")
    parser.add_argument("--design", default="specialised", metavar="D", help="any design (default: specialised)")
    parser.add_argument("--metadata", metavar="M", help="padding, hash or flat, for designs with a choice")
    add_conditions(parser)
    parser.add_argument("--kind", choices=KINDS, default="fentry", help="default: fentry")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Attach, detach and print; returns 1 if the check of a function failed."""
    from rich.console import Console
    from rich.progress import Progress

    from trampoline.tools.scale.mass_attach import mass_attach

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks = {what: bars.add_task(what, total=None) for what in ("attach", "detach")}
        result = mass_attach(
            arguments.glob,
            design=arguments.design,
            metadata=arguments.metadata,
            kind=arguments.kind,
            btf=arguments.functions,
            **conditions(arguments),
            progress=lambda what, done, of: bars.update(tasks[what], completed=done, total=of),
        )
    if arguments.json:
        print_json(result.to_json())
    else:
        print_result(result)
    return 1 if result.wrong else 0


def print_result(result: "MassAttach") -> None:
    """Print the figures as a table."""
    left_out = ", ".join(f"{count} {code}" for code, count in sorted(result.skipped.items())) or "none"
    print(f"{result.functions} functions, design {result.design}, kernel {result.flavour}; left out: {left_out}\n")
    print(f"{'':18}{'attach':>14}{'detach':>14}")
    attach, detach = result.attach, result.detach
    for name, label, form in (
        ("wall_seconds", "wall time (s)", ".3f"), ("virtual_seconds", "virtual time (s)", ".3f"),
        ("text_writes", "text writes", "d"), ("ipis", "rounds of IPIs", "d"), ("grace_periods", "grace periods", "d"),
        ("images", "images", "+"), ("memory_bytes", "memory (bytes)", "+"),
    ):  # fmt: skip
        print(f"{label:18}" + "".join(f"{format(getattr(cost, name), form):>14}" for cost in (attach, detach)))
    per_function = attach.memory_bytes / max(result.functions, 1)
    print(f"{'per function':18}{per_function:>+14.1f}")
    if result.checked:
        what = f"wrong: {', '.join(result.wrong)}" if result.wrong else "all right"
        print(f"\n{result.checked} function{'s' * (result.checked != 1)} called before, attached and after: {what}")
