"""``tramp jit``: bytecode and machine code side by side."""

import argparse
from pathlib import Path
from typing import Any

from trampoline.tools.commands._options import add_flavour, add_of_object, print_json, workload_of


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "jit",
        help="print the JIT code of an object's programs",
        description="Load the programs of a BPF object, and print the bytecode that the JIT receives (helpers inlined,"
        " addresses in place) next to its x86_64 code.",
    )
    parser.add_argument("file", type=Path, metavar="OBJECT", help="clang's object (clang -target bpf -g -c)")
    add_flavour(parser, "7.2")
    add_of_object(parser)
    parser.add_argument("--json", action="store_true", help="print addresses, bytes and instructions as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Load the object and print its programs."""
    from trampoline.tools.show.jit import compiled_object

    functions = compiled_object(workload_of(arguments, target=arguments.file))
    if arguments.json:
        print_json([function.to_json() for function in functions])
    else:
        print("\n\n".join(function.text() for function in functions))
    return 0
