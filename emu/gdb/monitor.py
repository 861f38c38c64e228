"""``monitor``: commands that gdb passes through."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emu.errors import EmuError
from emu.gdb.errors import GdbError


@dataclass(frozen=True, slots=True)
class MonitorCommand:
    """One command: its usage, its help text, and the function that returns its output."""

    usage: str
    help: str
    run: Callable[[Sequence[str]], str]

    @property
    def name(self) -> str:
        """Its first word."""
        return self.usage.split()[0]


class Monitor:
    """The commands of a session. ``say`` prints in gdb."""

    def __init__(self, commands: Sequence[MonitorCommand], say: Callable[[str], None]) -> None:
        self._commands = {command.name: command for command in commands}
        self._commands["help"] = MonitorCommand("help", "this list", self._help)
        self._say = say

    def run(self, line: str) -> None:
        """Run a command and print its output, or its error in one line."""
        try:
            words = shlex.split(line) or ["help"]
            command = self._commands.get(words[0])
            if command is None:
                raise GdbError(f"no command {words[0]!r}; monitor help lists them")
            self._say(command.run(words[1:]))
        except OSError as error:
            self._say(f"error: {error.filename}: {error.strerror}")
        except (EmuError, ValueError) as error:
            self._say(f"error: {str(error).splitlines()[0]}")

    def _help(self, words: Sequence[str]) -> str:
        width = max(len(command.usage) for command in self._commands.values())
        return "\n".join(f"{command.usage:{width}}  {command.help}" for command in self._commands.values())
