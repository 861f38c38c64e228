"""``tramp verify``: a kernel's verdict on a program."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.commands._options import add_flavour, add_kernel, open_chosen, print_json

if TYPE_CHECKING:
    from trampoline.tools.kernel.verdicts import Judged

TEXT_SUFFIXES = (".bpf", ".txt")


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "verify",
        help="say whether a kernel would load a program",
        description="Load the programs of a BPF object, or one of eBPF text, as a kernel would: attributes, target,"
        " verification. Exit status 1 if one is refused, or needs something that is not modelled.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="clang's object, or text (.bpf, .txt); with --kernel objects, as many as there are",
    )
    add_kernel(parser, several=True)
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
    parser.add_argument("--csv", action="store_true", help="with --kernel: print a line a program and kernel")


def run(arguments: argparse.Namespace) -> int:
    """Load and print; returns 1 if a program is refused."""
    if arguments.kernels:
        return _verify_in_kernels(arguments)
    from trampoline.releases import release
    from trampoline.tools.verify import programs_of_object, programs_of_text, verify, view

    if len(arguments.files) > 1 or arguments.csv:
        raise TrampolineError("several files, and --csv, are for real kernels: --kernel PATH")
    (file,) = arguments.files
    kernel = view(arguments.flavour, arguments.kernel_btf)
    if file.suffix in TEXT_SUFFIXES:
        programs = programs_of_text(file, kernel, arguments.section or "socket", arguments.license)
    else:
        programs = programs_of_object(file, kernel, arguments.program)
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


def _verify_in_kernels(arguments: argparse.Namespace) -> int:
    from trampoline.tools.kernel.verdicts import as_csv, judge

    if unreadable := next((file for file in arguments.files if file.suffix in TEXT_SUFFIXES), None):
        raise TrampolineError(f"{unreadable}: real kernels are given objects, not text")
    names = None if arguments.program is None else [arguments.program]
    judged: list[Judged] = []
    for path in arguments.kernels:
        with open_chosen(path) as kernel:
            for file in arguments.files:
                judged += judge(kernel, file, names, verbose=arguments.verbose)
    if not judged:
        raise TrampolineError("no program to verify: sections with a question mark are loaded by --program NAME")
    if arguments.json:
        print_json([one.to_json() for one in judged])
    elif arguments.csv:
        print(as_csv(judged), end="")
    else:
        print_table(judged, verbose=arguments.verbose)
    return 0 if all(one.accepted for one in judged) else 1


def print_table(judged: "list[Judged]", *, verbose: bool) -> None:
    """A line a program, a column a kernel; then the reasons."""
    kernels = list(dict.fromkeys((one.kernel, one.release) for one in judged))
    programs = list(dict.fromkeys((one.object, one.program) for one in judged))
    wide = max(len(program) for _, program in programs) + 2
    columns = [max(len(release), 18) + 2 for _, release in kernels]
    cells = {(one.object, one.program, one.kernel): one for one in judged}
    for file in dict.fromkeys(file for file, _ in programs):
        heads = "".join(f"{release:{size}}" for (_, release), size in zip(kernels, columns, strict=True))
        print(f"{file}\n{'':{wide}}{heads}".rstrip())
        for program in [name for other, name in programs if other == file]:
            row = [_cell(cells[file, program, path]) for path, _ in kernels]
            print(f"{program:{wide}}" + "".join(f"{c:{n}}" for c, n in zip(row, columns, strict=True)).rstrip())
    for one in judged:
        if not one.accepted:
            print(f"\n{one.program} on {one.release}: {one.outcome}: {one.message}")
        if verbose and one.log:
            print(f"\n{one.program} on {one.release}:\n{one.log.rstrip()}")
    print("\nNumbers: instructions that the verifier walked, seconds of this host's time.")


def _cell(one: "Judged") -> str:
    from trampoline.bpf.errors import errno_name

    if one.accepted:
        return f"{one.instructions} {one.seconds:.2f}s"
    return f"{one.outcome} {'-' + errno_name(one.errno) if one.errno else ''}".rstrip()
