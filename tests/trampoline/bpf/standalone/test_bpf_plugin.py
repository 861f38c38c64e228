"""``tramp bpf-plugin``: the contract of the conformance runner's plug-ins, and bad input."""

import io
import subprocess
import sys

import pytest

from bpf_elf import an_object
from trampoline.bpf.isa import encode, parse
from trampoline.tools.cli import main


@pytest.fixture
def plugin(monkeypatch, capsys):
    """Runs the plug-in with a program as text, or as it stands on standard input; gives status, stdout, stderr."""

    def run(program, *arguments, raw=False):
        monkeypatch.setattr("sys.stdin", io.StringIO(program if raw else encode(parse(program)).hex(" ")))
        status = main(["bpf-plugin", *arguments])
        return status, *capsys.readouterr()

    return run


def test_r0_is_printed_in_hexadecimal(plugin):
    assert plugin("r0 = -2\nexit") == (0, "fffffffffffffffe\n", "")
    assert plugin("r0 = 0\nexit") == (0, "0\n", "")


def test_memory_is_the_first_argument_with_spaces_or_without(plugin):
    program = "r0 = *(u16 *)(r1 +1)\nr0 <<= 8\nr0 |= r2\nexit"
    assert plugin(program, "aa bb CC") == (0, "ccbb03\n", "")
    assert plugin(program, "aa  bb  cc  ")[1] == plugin(program, "aabbcc")[1] == "ccbb03\n"


def test_without_memory_both_arguments_are_zero(plugin):
    assert plugin("r0 = r1\nr0 |= r2\nexit")[1] == "0\n"


def test_functions_and_helpers_are_called(plugin):
    assert plugin("r1 = 20\ncall double\nexit\ndouble:\nr0 = r1\nr0 += r1\nexit")[1] == "28\n"
    assert plugin("r1 = -1\ncall 5\nr0 = 2\nexit")[1] == "2\n"


def test_division_by_zero_has_a_result(plugin):
    assert plugin("r0 = 9\nr1 = 0\nr0 %= r1\nr2 = 5\nr2 /= r1\nr0 += r2\nexit")[1] == "9\n"


@pytest.mark.parametrize("release", ["6.1", "6.12", "7.2"])
def test_every_release_and_processor(plugin, release):
    program = "r0 = 1\nr3 = 5\nr0 <<= r3\nexit"
    assert plugin(program, "--flavour", release) == (0, "20\n", "")
    assert plugin(program, "00", "--flavour", release, "--no-bmi2") == (0, "20\n", "")


def test_the_program_may_be_an_argument(plugin):
    assert plugin("", "--program", "b700000007000000 9500000000000000", raw=True)[1] == "7\n"


def test_debug_shows_the_program_and_its_memory(plugin):
    status, out, err = plugin("*(u8 *)(r1 +0) = 7\nr0 = 1\nexit", "ff01", "--debug")
    assert (status, out) == (0, "1\n")
    assert err == "    *(u8 *)(r1 +0) = 7\n    r0 = 1\n    exit\nmemory: ff 01\nmemory after: 07 01\n"


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("b70", [], "the program has 3 hexadecimal digits: the last byte is half a byte"),
        ("b7 xx", [], "the program has 'x' where digit 3 should be hexadecimal"),
        ("0xb7", [], "the program has 'x' where digit 2 should be hexadecimal"),
        ("", [], "the program has no instructions"),
        ("b7000000", [], "slot 0: 4 bytes are left over, a slot has 8"),
        ("ff00000000000000 9500000000000000", [], "slot 0: unknown opcode 0xff"),
        ("9500000000000000 8d00000000000000", [], "slot 1: unknown opcode 0x8d"),
        ("0701010001000000 9500000000000000", [], "slot 0: opcode 0x07: reserved field off is 1"),
        ("1800000001000000", [], "slot 0: the second slot of LD_IMM64 is missing"),
        ("b700000001000000", [], "slot 0: the last instruction of a function is neither exit nor a jump"),
        ("0500050000000000", [], "slot 0: the jump to slot 6 leaves its function"),
        ("0500ffff00000000", [], "slot 0: still running after 10000000 machine instructions"),
        ("0500ffff00000000", ["--max-instructions", "9"], "slot 0: still running after 9 machine instructions"),
        ("7910000000000000 9500000000000000", [], "slot 0: page fault reading 0x0"),
        ("7310080000000000 9500000000000000", ["0011223344556677"], "slot 0: page fault writing 0x8"),
        ("8500000001000000 9500000000000000", [], "slot 0: no helper 1"),
        ("9500000000000000", ["0"], "the memory has 1 hexadecimal digits: the last byte is half a byte"),
        ("9500000000000000", ["0g"], "the memory has 'g' where digit 2 should be hexadecimal"),
        ("9500000000000000", ["00" * ((1 << 20) + 1)], "1048577 bytes of memory, 1048576 at most"),
        ("9500000000000000", ["--flavour", "5.4"], "no kernel release '5.4'; there are 6.1, 6.12, "),
        ("9500000000000000", ["--max-instructions", "0"], "--max-instructions 0: at least one is needed"),
        ("9500000000000000", ["00", "--elf"], "not an ELF file"),
        ("d700000010000000 9500000000000000", ["--flavour", "6.1"], "slot 0: 6.1 has no r0 = bswap16 r0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(plugin, program, arguments, message):
    status, out, err = plugin(program, *arguments, raw=True)
    assert (status, out) == (2, "")
    assert err.startswith(f"tramp bpf-plugin: {message}")
    assert err.count("\n") == 1


def test_an_object_may_be_given(plugin):
    program = an_object(encode(parse("r0 = 5\nr0 += r2\nexit"))).hex(" ")
    assert plugin(program, "0011", "--elf", raw=True) == (0, "7\n", "")
    status, _, err = plugin(program[:-30], "--elf", raw=True)
    assert (status, err) == (2, "tramp bpf-plugin: damaged section headers, or a truncated file\n")


def test_a_process_reads_its_standard_input():
    command = [sys.executable, "-m", "trampoline", "bpf-plugin"]
    ran = subprocess.run(command, input=b"b7 00 00 00 2a 00 00 00  95 00 00 00 00 00 00 00\n", capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"2a\n", b"")
    ran = subprocess.run(command, input=b"\xff\xfe", capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr.count(b"\n")) == (2, b"", 1)
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    assert ran.stderr == b"tramp bpf-plugin: the program has no instructions\n"
