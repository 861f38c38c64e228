"""``tramp jit``: bytecode and machine code side by side."""

import argparse
from pathlib import Path
from typing import Any

from trampoline.tools.commands._flavour import flavour_help


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "jit",
        help="print what the JIT makes of an object's programs",
        description="Load the programs of a BPF object, and print the bytecode that the JIT was given (helpers inlined,"
        " addresses in place) beside its x86_64 code.",
    )
    parser.add_argument("file", type=Path, metavar="OBJECT", help="clang's object (clang -target bpf -g -c)")
    parser.add_argument("--flavour", metavar="F", default="7.2", help=flavour_help("7.2"))
    parser.add_argument("--kernel-btf", type=Path, metavar="BTF", help="the kernel's BTF, raw or packed")
    parser.add_argument("--program", action="append", metavar="NAME", help="this program only; may be given again")
    parser.add_argument("--json", action="store_true", help="print addresses, bytes and instructions as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Load and print."""
    from trampoline.tools.show.jit import compiled_object

    functions = compiled_object(
        arguments.file, flavour=arguments.flavour, kernel_btf=arguments.kernel_btf, names=arguments.program
    )
    if arguments.json:
        import json

        print(json.dumps([function.to_json() for function in functions], indent=2))
    else:
        print("\n\n".join(function.text() for function in functions))
    return 0
