"""``tramp verify``: what a kernel would say to a program."""

import argparse
from pathlib import Path
from typing import Any

from trampoline.tools.commands._options import add_flavour, print_json

TEXT_SUFFIXES = (".bpf", ".txt")


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "verify",
        help="say whether a kernel would load a program",
        description="Load the programs of a BPF object, or one of eBPF text, as a kernel would: attributes, target,"
        " verification. Exit status 1 where one is refused, or needs what is not modelled.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="clang's object, or text (.bpf, .txt)")
    parser.add_argument("--kernel-btf", type=Path, metavar="BTF", help="the kernel's BTF, raw or packed")
    add_flavour(parser)
    parser.add_argument("--program", metavar="NAME", help="of an object: this program only")
    parser.add_argument(
        "--section",
        metavar="S",
        help="of text: type and target as in an object's section name, fentry.s/vfs_read (default: socket)",
    )
    parser.add_argument("--license", default="GPL", metavar="L", help="of text (default: GPL)")
    parser.add_argument("--attach", action="store_true", help="attach too, to the target of the section's name")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the log too")
    parser.add_argument("--json", action="store_true", help="print verdicts and logs as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Load, print, and say by the exit status whether a kernel would."""
    from trampoline.releases import release
    from trampoline.tools.verify import programs_of_object, programs_of_text, verify, view

    kernel = view(arguments.flavour, arguments.kernel_btf)
    if arguments.file.suffix in TEXT_SUFFIXES:
        programs = programs_of_text(arguments.file, kernel, arguments.section or "socket", arguments.license)
    else:
        programs = programs_of_object(arguments.file, kernel, arguments.program)
    attach = release(arguments.flavour).trampoline if arguments.attach else None
    verdicts = [verify(program, kernel, attach=attach, verbose=arguments.verbose) for program in programs]
    if arguments.json:
        print_json([verdict.to_json() for verdict in verdicts])
    else:
        for verdict in verdicts:
            print(verdict)
            if arguments.verbose and verdict.log:
                print(verdict.log.rstrip("\n"))
    return 0 if all(verdict.accepted for verdict in verdicts) else 1
