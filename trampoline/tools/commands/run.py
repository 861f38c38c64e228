"""``tramp run``: a compiled object, attached and called."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.commands._options import (
    ARGUMENTS,
    add_config,
    add_design,
    add_flavour,
    add_kernel,
    add_of_object,
    add_outputs,
    number,
    open_chosen,
    print_json,
    workload_of,
)

if TYPE_CHECKING:
    from trampoline.tools.run import Called, RunOutcome


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "run",
        help="load clang's object, attach its programs, call functions",
        description="Load the programs of a BPF object into a synthetic kernel, attach each as its section says, make"
        " the calls, and print what variables, maps and trace output hold, and what each call cost.",
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="OBJECT",
        help="clang's object (clang -target bpf -g -c); with --kernel it may be left out",
    )
    parser.add_argument(
        "--call",
        action="append",
        dest="calls",
        metavar="CALL",
        help=f"a call, 'bpf_fentry_test2(2, 3)'; {ARGUMENTS}; with --kernel also current (the task) and zero:N (N"
        " zeroed bytes on its stack); may be given several times",
    )
    add_kernel(parser)
    add_flavour(parser, "7.2")
    add_design(parser)
    add_config(parser)
    add_of_object(parser)
    parser.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="NAME=N", help="a global variable's first value"
    )
    parser.add_argument(
        "--target",
        action="append",
        dest="targets",
        default=[],
        type=_named,
        metavar="PROGRAM=F",
        help="another function than its section's",
    )
    parser.add_argument(
        "--cookie", action="append", default=[], dest="cookies", type=_setting, metavar="PROGRAM=N",
        help="cookie of a program's link",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_outputs(parser, required=False)


def run(arguments: argparse.Namespace) -> int:
    """Load, attach, call and print."""
    if arguments.kernel is not None:
        return _run_in_kernel(arguments)
    if arguments.file is None:
        raise TrampolineError("an object is needed, or --kernel with a memory image in which programs are attached")
    from trampoline.tools.report.formats import write_recording, writers
    from trampoline.tools.run import run_object

    outputs = writers(arguments.output, arguments.format)
    workload = workload_of(
        arguments,
        target=arguments.file,
        calls=arguments.calls or (),
        data=dict(arguments.set),
        targets=dict(arguments.targets),
    )
    outcome = run_object(workload, recorded=bool(outputs))
    if outcome.recording is not None:
        write_recording(outputs, outcome.recording, f"tramp run {arguments.file.name}")
    if arguments.json:
        print_json(outcome.to_json())
    else:
        print_outcome(outcome)
    return 0


def _run_in_kernel(arguments: argparse.Namespace) -> int:
    from trampoline.tools.kernel.calls import run_in_kernel

    if arguments.output:
        raise TrampolineError("--output is for the synthetic kernel: a real one is not recorded")
    with open_chosen(arguments.kernel, arguments.cpu, arguments.task) as kernel:
        outcome = run_in_kernel(
            kernel,
            arguments.calls or (),
            arguments.file,
            names=arguments.names,
            targets=dict(arguments.targets),
            cookies=dict(arguments.cookies),
            data=dict(arguments.set),
        )
    if arguments.json:
        print_json(outcome.to_json())
        return 0
    print(f"kernel {outcome.release}")
    for line in outcome.attached:
        print(f"attached {line}")
    for call in outcome.calls:
        more = "" if call.before is None else f", {call.before} before ({call.run.instructions - call.before:+d})"
        unbalanced = call.run.unbalanced_returns
        print(f"\n{call.text} = {call.value}\n  {call.run.instructions} instructions{more}", end="")
        print(f", {unbalanced} unbalanced returns" if unbalanced else "")
        for name, count in call.run.by_function:
            print(f"  {count:6} {name}")
        for message in call.run.messages:
            print(f"  log: {message.text}")
    print_memory(outcome.variables, outcome.maps)
    return 0


def print_outcome(outcome: "RunOutcome") -> None:
    """Print the whole result."""
    for line in outcome.attached:
        print(f"attached {line}")
    for call in outcome.calls:
        print_call(call)
    print_memory(outcome.variables, outcome.maps)
    if outcome.trace:
        print("\ntrace")
        for trace in outcome.trace:
            print(trace)


def print_memory(variables: dict[str, Any], maps: dict[str, Any]) -> None:
    """Global variables and contents of maps."""
    if variables:
        print("\nvariables")
        for name, value in variables.items():
            print(f"  {name} = {value}")
    for name, content in maps.items():
        print(f"\nmap {name}" + ("" if content else ": empty"))
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            print(f"  {_shown(key)}: {_shown(value)}")


def print_call(call: "Called") -> None:
    """Print the return value, and the instructions by phase."""
    value = "" if call.value is None else f" = {call.value}"
    unbalanced = f", {call.counts.unbalanced_returns} unbalanced returns" if call.counts.unbalanced_returns else ""
    print(
        f"\n{call.text}{value}\n  {call.counts.instructions} instructions, {call.before} without programs"
        f" ({call.counts.instructions - call.before:+d}){unbalanced}"
    )
    for phase in sorted(call.counts.by_phase, key=_PHASES.index):
        print(f"  {phase:8} {call.counts.by_phase[phase]:6}")


_PHASES = ("other", "entry", "save", "lookup", "enter", "program", "exit", "origin", "restore", "leave")
"""Phases in order; ``other`` is the function itself, and its callees."""


def _shown(value: Any) -> str:
    return bytes(value).hex(" ") if isinstance(value, bytes | bytearray) else str(value)


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _setting(text: str) -> tuple[str, int]:
    name, value = _named(text)
    return name, number(value)
