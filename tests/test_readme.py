"""What the README shows is what happens."""

import re
import shlex

import pytest

from paths import ROOT
from trampoline.tools.cli import main

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
RUNS = r"^    tramp ((?:bench|compare|show|run|jit|verify examples)\b(?!.* --kernel ).*)$"
"""Commands that need no kernel of the reader's; tests/trampoline/tools/commands runs the others on Debian's."""


def test_the_bench_prints_what_the_readme_shows(capsys):
    assert main(["bench", "--flavour", "all"]) == 0
    shown = next(block for block in re.findall(r"```\n(.*?)```", README, re.S) if "ratio" in block)
    assert capsys.readouterr().out == shown


def test_the_commands_that_the_readme_shows_run(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in re.findall(RUNS, README, re.M):
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out


def test_the_object_runs_as_the_readme_shows(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = re.findall(r"^    tramp (run (?!--kernel).*)$", README, re.M)
    assert main(shlex.split(command)) == 0
    shown = next(block for block in re.findall(r"```\n(.*?)```", README, re.S) if block.startswith("attached"))
    assert capsys.readouterr().out == shown


def test_bytecode_and_machine_code_are_as_the_readme_shows(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["jit", "examples/watch_calls.o"]) == 0
    shown = next(block for block in re.findall(r"```\n(.*?)```", README, re.S) if block.startswith("; "))
    assert shown in capsys.readouterr().out


def test_the_python_that_the_readme_shows_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("5 [((2, 3), 5, 7)] {'enter':")
