"""``tramp step`` as a command: options, bad input, files, a real terminal."""

import fcntl
import io
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest

from paths import ROOT
from patience import PATIENCE
from trampoline.tools.cli import main

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
TARGET = ("bpf_fentry_test1", "--fentry")


def step(capsys, *words):
    status = main(["step", *map(str, words)])
    return status, *capsys.readouterr()


def test_without_a_terminal_it_is_plain(capsys):
    status, out, err = step(capsys, *TARGET)
    assert (status, err) == (0, "")
    assert "endbr64" in out
    assert "\x1b" not in out
    assert step(capsys, *TARGET, "--plain")[1] == out


def test_one_phase_and_so_many(capsys):
    _, out, _ = step(capsys, *TARGET, "--phase", "save", "--max", "2")
    assert [line.split()[2] for line in out.splitlines()[2:]] == ["save", "save"]


def test_commands_from_options_and_a_file(capsys, tmp_path):
    script = tmp_path / "commands"
    script.write_text("# to the program and back\nto program\n\nrs\n")
    _, out, _ = step(capsys, *TARGET, "--ex", "s", "-x", script)
    assert [line for line in out.splitlines() if line.startswith("(tramp)")] == [
        *("(tramp) s", "(tramp) to program", "(tramp) rs")
    ]


def test_commands_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("s 2\nbreak nix\nquit\nnever reached\n"))
    status, out, err = step(capsys, *TARGET, "--ex", "p; rs", "-x", "-")
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("(tramp)")] == [
        *("(tramp) p", "(tramp) rs", "(tramp) s 2", "(tramp) break nix", "(tramp) quit")
    ]


def test_a_fault_is_status_1(capsys):
    status, out, _ = step(capsys, "bpf_fentry_test9", "--fentry", "--call", "bpf_fentry_test9(1)")
    assert status == 1
    assert "page fault" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no_such", "--fentry"], "no_such"),
        ([*TARGET, "--call", "f(1"], "is not a call"),
        ([*TARGET, "--call", "bpf_fentry_test1(1, 2)"], "takes 1 arguments"),
        ([*TARGET, "--phase", "nix"], "no phase 'nix'"),
        ([*TARGET, "--max", "many"], "is not a number"),
        ([*TARGET, "-x", "nowhere/commands"], "nowhere/commands: No such file"),
        ([*TARGET, "--flavour", "5.4"], "5.4"),
        ([*TARGET, "--screenshot", "nowhere/a.svg"], "nowhere/a.svg: No such file"),
        ([*TARGET, "--screenshot", "a.svg", "--size", "10x5"], "10x5 is not between 72x20 and "),
        ([*TARGET, "--screenshot", "a.svg", "--size", "9999x50"], "not between 72x20 and 400x200"),
        ([*TARGET, "--screenshot", "a.svg", "--size", "wide"], "is not a size"),
        ([*TARGET, "--screenshot", "a.svg", "--plain"], "--screenshot: not with --plain"),
        ([*TARGET, "--screenshot", "a.svg", "--ex", "break nix"], "no symbol 'nix'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(capsys, monkeypatch, tmp_path, words, says):
    monkeypatch.chdir(tmp_path)
    status, out, err = step(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_can_be_made_anew(capsys, tmp_path):
    pictures = []
    for name in ("one.svg", "two.svg"):
        path = tmp_path / name
        assert step(capsys, *TARGET, "--ex", "to program", "--screenshot", path) == (0, "", "")
        pictures.append(path.read_text())
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith("<svg")
    assert "bpf_prog_fentry0" in pictures[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]


def test_the_picture_in_the_documentation_is_what_its_command_makes(capsys, tmp_path):
    page = (DOCS / "stepping.md").read_text()
    (command,) = re.findall(r"^\$ tramp (step .* --screenshot) step-screen.svg$", page, re.M)
    path = tmp_path / "screen.svg"
    assert main([*shlex.split(command), str(path)]) == 0
    assert path.read_text() == (DOCS / "step-screen.svg").read_text()


class Terminal:
    """A real pseudo-terminal with ``tramp step`` in it, and what it shows."""

    def __init__(self, words, columns, lines, **environment):
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.leader, follower = pty.openpty()
        # pytest-xdist says how wide it is, which would hold for this terminal too.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trampoline", "step", *words],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            start_new_session=True,
        )
        os.close(follower)
        self.received = b""

    def wait_for(self, text, seconds=PATIENCE):
        """Read until the screen shows a text."""
        end = time.monotonic() + seconds
        while text not in "\n".join(self.screen.display):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            self._read(0.5)

    def press(self, keys):
        """Type; ``received`` begins anew."""
        self.received = b""
        os.write(self.leader, keys.encode())

    def resize(self, columns, lines):
        """As a window manager does."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(28)  # SIGWINCH: the terminal is not its controlling one

    def close(self):
        """Wait for its end; the exit status."""
        try:
            while self.process.poll() is None:
                self._read(0.2)
            return self.process.returncode
        finally:
            self.process.kill()
            os.close(self.leader)

    def _read(self, seconds):
        if not select.select([self.leader], [], [], seconds)[0]:
            return
        try:
            data = os.read(self.leader, 1 << 16)
        except OSError:
            return
        self.received += data
        self._stream.feed(data)


def test_in_a_real_terminal():
    terminal = Terminal(TARGET, 80, 24)
    try:
        terminal.wait_for("s step n over")
        terminal.press("s")
        terminal.wait_for("position 2")
        terminal.press("s:s 2\rs")
        terminal.wait_for("position 6")
        terminal.press("s")
        terminal.wait_for("position 7")
        terminal.wait_for("=> +0xc ")
        painted = terminal.received[terminal.received.index(b"position 7") :]
        assert len(painted) < 2500  # the whole screen takes five times as much
        terminal.resize(60, 15)
        terminal.wait_for("60x15 is too small: 72x20 at least")
        terminal.resize(80, 24)
        terminal.wait_for("position 7")
        terminal.wait_for("mov eax, 1")
    finally:
        terminal.press("q")
        assert terminal.close() == 0


def test_a_dumb_terminal_gets_lines():
    terminal = Terminal((*TARGET, "--max", "3"), 80, 24, TERM="dumb")
    assert terminal.close() == 0
    assert b"\x1b" not in terminal.received
    assert b"endbr64" in terminal.received


def test_without_colour_there_is_no_colour():
    terminal = Terminal(TARGET, 80, 24, NO_COLOR="1")
    try:
        terminal.wait_for("s step n over")
        terminal.press("s")
        terminal.wait_for("position 2")
        assert {cell.fg for row in terminal.screen.buffer.values() for cell in row.values()} == {"default"}
        assert any(cell.reverse for cell in terminal.screen.buffer[4].values())
    finally:
        terminal.press("q")
        assert terminal.close() == 0
