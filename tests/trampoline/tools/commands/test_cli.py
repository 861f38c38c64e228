import argparse
import os
import subprocess
import sys
from types import ModuleType

import pytest

from asm import AsmError
from emu.errors import EmuError
from patience import PATIENCE
from trampoline import TrampolineError
from trampoline.tools import cli


def a_command(run):
    """A subcommand module `try`, as those in trampoline.tools.commands, with the given run()."""
    module = ModuleType("try")

    def add_parser(subparsers):
        parser = subparsers.add_parser("try", help="runs what the test says")
        parser.add_argument("--count", type=int)

    module.add_parser = add_parser
    module.run = run
    return module


@pytest.fixture
def tramp(monkeypatch, capfd):
    """Runs `tramp` with one subcommand `try`; gives status, stdout, stderr."""
    monkeypatch.delenv("TRAMP_TRACEBACK", raising=False)

    def run_tramp(*argv, run=lambda arguments: 0):
        monkeypatch.setattr(cli, "subcommands", lambda: ["try"])
        monkeypatch.setattr(cli, "subcommand", {"try": a_command(run)}.get)
        status = cli.main(argv)
        return (status, *capfd.readouterr())

    return run_tramp


def raising(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_status_of_the_subcommand_is_the_status_of_the_command(tramp, status):
    assert tramp("try", run=lambda arguments: status) == (status, "", "")


def test_the_subcommand_gets_its_arguments(tramp):
    seen = []
    tramp("try", "--count", "3", run=lambda arguments: seen.append(arguments.count) or 0)
    assert seen == [3]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("nothing",), "invalid choice: 'nothing'"),
        (("try", "--count", "many"), "argument --count: invalid int value: 'many'"),
        (("try", "--cou", "3"), "unrecognized arguments: --cou 3"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(tramp, argv, says):
    status, out, err = tramp(*argv)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert err.startswith("tramp")


@pytest.mark.parametrize("error_class", [TrampolineError, EmuError, AsmError])
def test_an_error_of_a_package_is_one_line_and_status_2(tramp, error_class):
    error = error_class("line 1, column 5: no such register\n  mov raxx, 1\n")
    assert tramp("try", run=raising(error)) == (
        2,
        "",
        "tramp try: line 1, column 5: no such register; mov raxx, 1\n",
    )


def test_a_missing_file_is_named(tramp, tmp_path):
    missing = tmp_path / "missing.jsonl"
    status, out, err = tramp("try", run=lambda arguments: missing.open())
    assert (status, out, err) == (2, "", f"tramp try: {missing}: No such file or directory\n")


def test_an_unexpected_error_prints_no_traceback(tramp):
    status, out, err = tramp("try", run=raising(ZeroDivisionError("division by zero")))
    assert (status, out) == (2, "")
    assert err.startswith("tramp try: unexpected ZeroDivisionError: division by zero")
    assert err.count("\n") == 1


def test_an_unexpected_error_is_raised_where_a_traceback_is_wanted(tramp, monkeypatch):
    monkeypatch.setenv("TRAMP_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        tramp("try", run=raising(ZeroDivisionError()))


def test_ctrl_c_ends_with_the_status_of_sigint(tramp):
    assert tramp("try", run=raising(KeyboardInterrupt())) == (130, "", "")


def test_help_and_version_succeed(tramp):
    status, out, err = tramp("--help")
    assert (status, err) == (0, "")
    assert "try" in out
    assert "runs what the test says" in out
    assert tramp("--version")[0] == 0


def test_every_subcommand_describes_itself():
    parser = cli.build_parser()
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    assert list(subparsers.choices) == cli.subcommands()
    assert len(subparsers._choices_actions) == len(subparsers.choices)  # each one with a help line
    for name, subparser in subparsers.choices.items():
        assert subparser.get_default("run") is cli.subcommand(name).run


def run_python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE, **options)


@pytest.mark.parametrize(
    ("argv", "unwanted"),
    [
        (["--help"], {"asm", "capstone", "dataclasses", "emu.kernel.kernel", "keystone", "trampoline.lab", "unicorn"}),
        (["show", "--help"], {"asm", "capstone", "keystone", "trampoline.tools.commands.explore", "unicorn"}),
        (
            ["show", "bpf_fentry_test1", "--fentry"],
            {"trampoline.bpf.verifier.walk", "trampoline.tools.commands.explore"},
        ),
    ],
)
def test_a_command_imports_only_what_it_needs(argv, unwanted):
    code = "import sys; from trampoline.tools.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    result = run_python("-c", code, *argv)
    assert (result.returncode, result.stdout[:1] != "") == (0, True)
    never = {"distributed", "hypothesis", "lief", "matplotlib", "numpy", "redis", "rich", "textual"}
    assert not (unwanted | never) & set(result.stderr.split())


def test_a_command_makes_its_own_parser_alone(monkeypatch):
    made = []
    monkeypatch.setattr(cli, "subcommand", lambda name: made.append(name) or a_command(lambda arguments: 0))
    monkeypatch.setattr(cli, "subcommands", lambda: ["other", "try"])
    assert (cli.main(["try"]), made) == (0, ["try"])


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def help_into(request):
    """Runs `tramp --help` with its output going to a file; gives status and stderr."""

    def run_help(file):
        environment = os.environ | {"PYTHONUNBUFFERED": request.param}
        command = [sys.executable, "-m", "trampoline", "--help"]
        pipes = {"stdout": file, "stderr": subprocess.PIPE, "text": True}
        result = subprocess.run(command, **pipes, timeout=PATIENCE, env=environment)
        return result.returncode, result.stderr

    return run_help


def test_a_reader_that_goes_away_leaves_no_message(help_into):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert help_into(writing) == (141, "")
    finally:
        os.close(writing)


def test_output_that_cannot_be_written_is_an_error(help_into):
    with open("/dev/full", "w") as full:
        assert help_into(full) == (2, "tramp: No space left on device\n")
