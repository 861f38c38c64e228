"""``tramp bpf-plugin``: one program through the JIT, as a plug-in of the bpf_conformance runner.

The program is hexadecimal bytes on standard input, its memory in the first argument; r0 goes to standard output.
"""

import argparse
import sys
from typing import Any

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.commands._options import flavour_help

KTIME_GET_NS, GET_PRANDOM_U32, GET_SMP_PROCESSOR_ID = 5, 7, 8


class InputError(TrampolineError):
    """Invalid standard input or argument of the plug-in."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "bpf-plugin",
        help="run one BPF program: a plug-in of the bpf_conformance runner",
        description="Compile the program on standard input (hexadecimal bytes, with or without spaces) and run it"
        " with r1 the address and r2 the length of the memory; print r0. The program is not verified. An error is one"
        " line on standard error, with exit status 2.",
    )
    parser.add_argument("memory", nargs="?", default="", metavar="MEMORY", help="hexadecimal bytes, none by default")
    parser.add_argument("--program", metavar="HEX", help="the program, instead of standard input")
    parser.add_argument("--elf", action="store_true", help="the bytes are an ELF object with the code of one function")
    parser.add_argument("--debug", action="store_true", help="print the program and its memory on standard error")
    parser.add_argument("--flavour", default="7.2", metavar="RELEASE", help="the JIT's " + flavour_help("7.2"))
    parser.add_argument("--no-bmi2", action="store_true", help="compile for a processor without BMI2")
    parser.add_argument(
        "--max-instructions",
        type=int,
        default=10_000_000,
        metavar="N",
        help="limit of machine instructions (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program and print its return value."""
    if arguments.max_instructions < 1:
        raise InputError(f"--max-instructions {arguments.max_instructions}: at least one is needed")
    program = from_hex(read_input() if arguments.program is None else arguments.program, "the program")
    memory = from_hex(arguments.memory, "the memory")
    if arguments.elf:
        from trampoline.bpf.standalone.elf import code_of

        program = code_of(program)

    from trampoline.bpf.isa import decode, format_program

    insns = decode(program)
    if arguments.debug:
        print(format_program(insns), end="", file=sys.stderr)
        print(f"memory: {memory.hex(' ') or 'none'}", file=sys.stderr)

    from trampoline.bpf.standalone import BareMachine
    from trampoline.releases import release

    machine = BareMachine(
        release(arguments.flavour),
        bmi2=not arguments.no_bmi2,
        helpers={
            KTIME_GET_NS: lambda *_: 0,
            GET_PRANDOM_U32: lambda *_: 0x2545F491,
            GET_SMP_PROCESSOR_ID: lambda *_: 0,
        },
    )
    try:
        machine.load(insns)
        value, after = machine.run(memory, max_instructions=arguments.max_instructions)
    finally:
        machine.close()
    if arguments.debug and memory:
        print(f"memory after: {after.hex(' ')}", file=sys.stderr)
    print(f"{value:x}")
    return 0


def read_input() -> str:
    """Read standard input. Raises InputError if it is closed or not text."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError("standard input is not text; pass hexadecimal bytes") from error


def from_hex(text: str, what: str) -> bytes:
    """Parse hexadecimal digits with any white space between them.

    Raises InputError with the first invalid character, or for an odd number of digits.
    """
    digits = "".join(text.split())
    wrong = next((i for i, digit in enumerate(digits) if digit not in "0123456789abcdefABCDEF"), None)
    if wrong is not None:
        raise InputError(f"{what} has {digits[wrong]!r} where digit {wrong + 1} should be hexadecimal")
    if len(digits) % 2:
        raise InputError(f"{what} has {len(digits)} hexadecimal digits: the last byte is half a byte")
    return bytes.fromhex(digits)
