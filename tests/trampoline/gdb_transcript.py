"""What gdb prints for commands, as somebody at its prompt sees it, over a `tramp gdb` of its own."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SETTINGS = ("set pagination off", "set width 0", "set confirm off", "set debuginfod enabled off")


class Target:
    """``tramp gdb`` in a process of its own, in a folder. ``lines`` are what it has printed: the last one says how to
    connect.
    """

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trampoline", "gdb", *argv],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.lines: list[str] = []
        while line := self.process.stdout.readline():
            self.lines.append(line.rstrip("\n"))
            if line.startswith("gdb "):
                break
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
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=60, check=False,
        )  # fmt: skip
        return re.sub(r"\[Inferior 1 \(Remote target\) detached\]\n$", "", done.stdout)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
