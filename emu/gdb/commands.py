"""The ``monitor`` commands that any kernel has: time, events, phases, vCPUs, symbols."""

from collections.abc import Sequence
from itertools import groupby

from emu.debug import Debugger
from emu.event_text import describe
from emu.gdb.errors import GdbError
from emu.gdb.monitor import MonitorCommand
from emu.gdb.motion import Motion
from emu.gdb.symbol_file import SymbolFile

GOALS = ("phase", "program", "call", "patch", "event")
_EVENTS = 10


class KernelCommands:
    """Monitor commands of one debugger."""

    def __init__(self, debugger: Debugger, motion: Motion, symbols: SymbolFile) -> None:
        self._debugger, self._motion, self._symbols = debugger, motion, symbols

    def commands(self) -> list[MonitorCommand]:
        """All commands."""
        return [
            MonitorCommand("position", "the position on the timeline", self._position),
            MonitorCommand(
                "next WHAT", f"continue goes to the next {', '.join(GOALS[:-1])} or {GOALS[-1]}", self._next
            ),
            MonitorCommand("goto POSITION", "continue goes there, forwards or backwards", self._goto),
            MonitorCommand("events [N]", f"the last N events ({_EVENTS}), each with its position", self._events),
            MonitorCommand("phases", "the phases of the image that the current thread is in", self._phases),
            MonitorCommand("vcpus", "each vCPU's thread, and the text that it has not adopted", self._vcpus),
            MonitorCommand("symbols", "the path of the symbol file, and the command to read it again", self._reload),
        ]

    def _position(self, words: Sequence[str]) -> str:
        return f"position {self._debugger.position} of {self._debugger.end}"

    def _next(self, words: Sequence[str]) -> str:
        """Set the goal of the next continue: gdb does not know what a monitor command moves."""
        what = words[0] if words else "nothing"
        if what not in GOALS:
            raise GdbError(f"no goal {what!r}; there are {', '.join(GOALS)}")
        self._motion.goal = lambda: self._debugger.run_to(what)
        return f"continue goes to the next {what}"

    def _goto(self, words: Sequence[str]) -> str:
        try:
            position = int(words[0], 0) if words else -1
        except ValueError:
            position = -1
        first, end = self._motion.first, self._debugger.end
        if not first <= position <= end:
            raise GdbError(f"no position {words[0] if words else 'given'}: there are {first} to {end}")
        self._motion.destination = position
        return f"continue goes to position {position}"

    def _events(self, words: Sequence[str]) -> str:
        try:
            count = int(words[0], 0) if words else _EVENTS
        except ValueError:
            raise GdbError(f"{words[0]!r} is not a number of events") from None
        events, symbol = self._debugger.events, self._debugger.symbol
        lines = [
            f"{position:>8}  {describe(event, symbol)}" for position, event in events[max(len(events) - count, 0) :]
        ]
        return "\n".join(lines) or "nothing has happened yet"

    def _phases(self, words: Sequence[str]) -> str:
        rip = self._debugger.registers().get("rip", 0)
        image = self._debugger.kernel.machine.images.at(rip)
        if image is None or not any(line.phase for line in image.lines):
            return f"{self._debugger.symbol(rip)}: no phases are known here"
        rows = []
        for phase, group in groupby(image.lines, key=lambda line: line.phase):
            lines = list(group)
            start, end = image.address + lines[0].offset, image.address + lines[-1].offset + lines[-1].size
            mark = "=>" if start <= rip < end else "  "
            count = f"{len(lines)} instruction{'s' * (len(lines) != 1)}"
            rows.append(f"{mark} {phase or '-':8} {start:#x}  {count}")
        return "\n".join((self._debugger.symbol(image.address), *rows))

    def _vcpus(self, words: Sequence[str]) -> str:
        rows = []
        for cpu in self._debugger.vcpus():
            if cpu.thread is None:
                rows.append(f"cpu {cpu.index}: idle")
            else:
                where = self._debugger.symbol(cpu.rip)
                rows.append(f"cpu {cpu.index}: thread {cpu.thread.number}, {cpu.thread.name}, at {where}")
            for part in cpu.pending:
                sees = "sees the new bytes" if part.sees_new else "may see the old bytes"
                where = self._debugger.symbol(part.address)
                rows.append(f"  {where}: {part.old.hex(' ')} -> {part.new.hex(' ')}, {sees}")
        return "\n".join(rows)

    def _reload(self, words: Sequence[str]) -> str:
        self._symbols.update()
        return f"read it again with: symbol-file {self._symbols.path}"
