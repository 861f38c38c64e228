"""Every code block of the documentation runs, and prints what stands below it.

A fenced block says its language: ``python`` is executed, ``pycon`` compared as a doctest, ``console`` run by a shell (a
line ``...`` stands for any lines; without output below it a command must only succeed), ``c`` must stand in examples/,
``text`` is a drawing. Blocks of one page share names and a folder, which has examples/ and tests/ as the checkout does.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from paths import ROOT
from patience import PATIENCE

pytestmark = pytest.mark.slow

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=fence)$", re.M | re.S)
PLUGIN = "trampoline.tools.pytest_plugin"
"""Where tramplab is installed pytest has it already."""
DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page):
    """Language, body and line of each fenced block."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield found["language"].strip(), found["body"], text.count("\n", 0, found.start()) + 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    tramp = tmp_path / "bin" / "tramp"
    tramp.parent.mkdir()
    tramp.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m trampoline "$@"\n')
    tramp.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    path = [str(tramp.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRAMP_TRACEBACK", raising=False)
    if not any(point.value == PLUGIN for point in entry_points(group="pytest11")):
        monkeypatch.setenv("PYTEST_PLUGINS", PLUGIN)
    return tmp_path


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.stem)
def test_every_block_runs(page, folder):
    names = {"__name__": "__main__"}
    for language, body, line in blocks(page):
        where = f"{page.relative_to(ROOT)}:{line}"
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + body, str(page), "exec"), names)
        elif language == "pycon":
            run_doctest(body, names, where)
        elif language == "console":
            run_console(body, where)
        elif language == "c":
            assert any(body.strip() in file.read_text() for file in ROOT.glob("examples/*.c")), where
        else:
            assert language == "text" or language.startswith("{"), f"{where}: {language!r} blocks don't run"


def run_doctest(body, names, where):
    test = doctest.DocTestParser().get_doctest(body, names, where, where, 0)
    report = io.StringIO()
    result = doctest.DocTestRunner(optionflags=DOCTEST).run(test, out=report.write, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, report.getvalue()


def run_console(body, where):
    for command, expected in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
        done = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=PATIENCE,
        )
        assert done.returncode <= 1 or expected, f"{where}: {command}: {done.stdout}"
        if expected:
            assert matches(expected, done.stdout), f"{where}: {command} prints\n{done.stdout}"


def matches(expected, printed):
    parts = re.split(r"^\.\.\.\n", expected, flags=re.M)
    return re.fullmatch("(?:.*\n)*".join(re.escape(part) for part in parts), printed) is not None


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\nc\n", "a\nb\nc\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("a\n...\n", "a\n", True),
    ],
)
def test_three_dots_stand_for_any_lines(expected, printed, same):
    assert matches(expected, printed) is same
