"""``tramp run``: a compiled object, attached and called."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._flavour import flavour_help
from trampoline.tools.commands._outputs import add_outputs

if TYPE_CHECKING:
    from trampoline.tools.run import Called, RunOutcome


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "run",
        help="load clang's object, attach its programs, call functions",
        description="Load the programs of a BPF object into a synthetic kernel, attach each as its section says, make"
        " the calls, and print what variables, maps and trace output hold, and what each call cost.",
    )
    parser.add_argument("file", type=Path, metavar="OBJECT", help="clang's object (clang -target bpf -g -c)")
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        metavar="CALL",
        help="a call, 'bpf_fentry_test2(2, 3)'; arguments are numbers, \"text\", &number (a pointer to it), {2, 3} (a"
        " struct's words); may be given several times",
    )
    parser.add_argument("--flavour", metavar="F", default="7.2", help=flavour_help("7.2"))
    parser.add_argument("--design", metavar="D", default="per-function", help="any design (default: per-function)")
    parser.add_argument("--config", metavar="C", default="voluntary", help="voluntary (default), lazy or none")
    parser.add_argument(
        "--kernel-btf", type=Path, metavar="BTF", help="a BTF, raw or packed: the kernel then has all functions in it"
    )
    parser.add_argument("--program", action="append", metavar="NAME", help="this program only; may be given again")
    parser.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="NAME=N", help="a global variable's first value"
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        type=_named,
        metavar="PROGRAM=F",
        help="another function than its section's",
    )
    parser.add_argument(
        "--cookie", action="append", default=[], type=_setting, metavar="PROGRAM=N", help="cookie of a program's link"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_outputs(parser, required=False)


def run(arguments: argparse.Namespace) -> int:
    """Load, attach, call, print."""
    from trampoline.tools.report.formats import write_recording, writers
    from trampoline.tools.run import run_object

    outputs = writers(arguments.output, arguments.format)
    outcome = run_object(
        arguments.file,
        arguments.call,
        flavour=arguments.flavour,
        config=arguments.config,
        design=arguments.design,
        kernel_btf=arguments.kernel_btf,
        names=arguments.program,
        data=dict(arguments.set),
        targets=dict(arguments.target),
        cookies=dict(arguments.cookie),
        recorded=bool(outputs),
    )
    if outcome.recording is not None:
        write_recording(outputs, outcome.recording, f"tramp run {arguments.file.name}")
    if arguments.json:
        import json

        print(json.dumps(outcome.to_json(), indent=2))
    else:
        print_outcome(outcome)
    return 0


def print_outcome(outcome: "RunOutcome") -> None:
    """Everything as lines."""
    for line in outcome.attached:
        print(f"attached {line}")
    for call in outcome.calls:
        print_call(call)
    if outcome.variables:
        print("\nvariables")
        for name, value in outcome.variables.items():
            print(f"  {name} = {value}")
    for name, content in outcome.maps.items():
        print(f"\nmap {name}" + ("" if content else ": empty"))
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            print(f"  {_shown(key)}: {_shown(value)}")
    if outcome.trace:
        print("\ntrace")
        for trace in outcome.trace:
            print(trace)


def print_call(call: "Called") -> None:
    """What came back, and the instructions by phase."""
    value = "" if call.value is None else f" = {call.value}"
    unbalanced = f", {call.unbalanced_returns} unbalanced returns" if call.unbalanced_returns else ""
    print(
        f"\n{call.text}{value}\n  {call.instructions} instructions, {call.before} without programs"
        f" ({call.instructions - call.before:+d}){unbalanced}"
    )
    for phase in sorted(call.by_phase, key=_PHASES.index):
        print(f"  {phase:8} {call.by_phase[phase]:6}")


_PHASES = ("other", "entry", "save", "lookup", "enter", "program", "exit", "origin", "restore", "leave")
"""In the order in which they come; ``other`` is the function itself, and what it calls."""


def _shown(value: Any) -> str:
    return bytes(value).hex(" ") if isinstance(value, bytes | bytearray) else str(value)


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _setting(text: str) -> tuple[str, int]:
    name, value = _named(text)
    try:
        return name, int(value, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no number") from None
