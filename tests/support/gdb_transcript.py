"""What gdb prints for commands, as somebody at its prompt sees it, over a `tramp gdb` of its own."""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from paths import ROOT
from patience import PATIENCE
from trampoline.tools.cli import Parser
from trampoline.tools.commands._options import add_workload, workload_of
from trampoline.tools.debugger.gdb_server import serve

_SETTINGS = ("set pagination off", "set width 0", "set confirm off", "set debuginfod enabled off")


class Gdb:
    """gdb, run in a folder, for a target whose ``lines`` say how to connect."""

    lines: list[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def connect(self) -> None:
        found = re.fullmatch(r"gdb -ex 'target remote (.*):(\d+)' (.*)", self.lines[-1])
        assert found, self.lines
        self.host, self.port, self.symbols = found[1], int(found[2]), found[3]

    def session(self, gdb: str, commands: Sequence[str]) -> str:
        """Each command behind a prompt, then what it prints; ``target remote`` goes to where the target listens."""
        script = [*_SETTINGS]
        for command in commands:
            script.append("echo " + f"(gdb) {command}".replace("\\", "\\\\").replace('"', '\\"') + "\\n")
            script.append(re.sub(r"^target remote .*", f"target remote {self.host}:{self.port}", command))
        file = self.folder / "script.gdb"
        file.write_text("\n".join(script) + "\n")
        done = subprocess.run(
            [gdb, "-nx", "-batch", "-x", file.name, self.symbols],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return re.sub(r"\[Inferior 1 \(Remote target\) detached\]\n$", "", done.stdout)


class Process(Gdb):
    """``tramp gdb`` in a process of its own."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        super().__init__(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trampoline", "gdb", *argv],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.lines = []
        while line := self.process.stdout.readline():
            self.lines.append(line.rstrip("\n"))
            if line.startswith("gdb "):
                break
        self.connect()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Thread(Gdb):
    """The same in a thread of this process, which is quicker, until the first gdb is gone."""

    def __init__(self, argv: Sequence[str], folder: Path, **options) -> None:
        super().__init__(folder)
        parser = Parser()
        add_workload(parser)
        options["tell"] = self._tell
        self.lines = []
        self._is_ready = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=self._serve, args=(workload_of(parser.parse_args(argv)), options), daemon=True
        )
        self.thread.start()
        assert self._is_ready.wait(PATIENCE), self.error
        self.connect()

    def _serve(self, target, options) -> None:
        try:
            serve(target, once=True, **options)
        except BaseException as error:  # for the test to see
            self.error = error

    def _tell(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("gdb "):
            self._is_ready.set()

    def close(self) -> None:
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive()
        assert self.error is None
