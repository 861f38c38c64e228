"""The transcripts of docs/gdb.md are what the commands print; only the port is another one."""

import re
import shlex

import pytest

from gdb_transcript import ROOT, Process

pytestmark = pytest.mark.slow

PORT = "4711"


def sessions() -> list[tuple[str, str]]:
    """For each target of the page: what starting it shows, and all that gdb shows."""
    blocks = re.findall(r"^```text\n(.*?)^```\n", (ROOT / "docs" / "gdb.md").read_text(), re.MULTILINE | re.DOTALL)
    found: list[tuple[str, str]] = []
    for block in blocks:
        if block.startswith("$ tramp gdb "):
            found.append((block, ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + block)
    return found


@pytest.mark.parametrize(("start", "shown"), sessions(), ids=["one call", "an attach under way"])
def test_a_transcript(start, shown, tool, tmp_path):
    command, *introduction = start.splitlines()
    argv = ["0" if word == PORT else word for word in shlex.split(command)[3:]]
    target = Process(argv, tmp_path)
    try:
        assert [line.replace(f":{target.port}'", f":{PORT}'") for line in target.lines] == introduction
        commands = re.findall(r"^\(gdb\) (.*)$", shown, re.MULTILINE)
        assert target.session(tool("gdb"), commands) == shown
    finally:
        target.close()
