"""A target served to gdb: ``tramp gdb``."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from emu.gdb.commands import KernelCommands
from emu.gdb.errors import GdbError
from emu.gdb.monitor import MonitorCommand
from emu.gdb.server import Server
from emu.gdb.symbol_file import SymbolFile
from trampoline.lab.workload import ReadyWorkload, Workload, open_workload
from trampoline.tools.debugger import BpfDebugger


def serve(
    options: Workload,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    symbols: Path | None = None,
    once: bool = False,
    tell: Callable[[str], object] = print,
) -> None:
    """Serve a target to one gdb after another; ``once``: to one. ``tell`` gets lines for the user, the last of which is
    the command that starts gdb.

    What ``open_workload`` raises; GdbError for an address or a port that can't be had; OSError where the symbol file
    can't be written.
    """
    with open_workload(options) as ready, closing(BpfDebugger(ready.lab)) as debugger:
        ready.begin(debugger)
        debugger.select(debugger.threads[0])
        file = SymbolFile(ready.lab.kernel, symbols)
        try:
            with Server(debugger, host, port, on_stop=lambda: changed(file)) as server:
                server.commands += KernelCommands(debugger, server.motion, file).commands()
                server.commands += frame_commands(debugger)
                for line in introduction(ready, server, file.path):
                    tell(line)
                server.serve(once=once)
        finally:
            file.close()


def introduction(ready: ReadyWorkload, server: Server, path: Path) -> list[str]:
    """What is served, and how to connect."""
    place = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    threads = [f"thread {number}: {call.text} on cpu {call.cpu}" for number, call in enumerate(ready.calls, 1)]
    threads += [f"thread {number}: {name}" for number, (name, _) in enumerate(ready.operations, len(threads) + 1)]
    return [ready.title, *threads, f"gdb -ex 'target remote {place}' {shlex.quote(str(path))}"]


def changed(file: SymbolFile) -> str:
    """Bring the symbol file up to date; what gdb is to say where that changed it, or failed."""
    try:
        return f"the symbols have changed: symbol-file {file.path}" if file.update() else ""
    except OSError as error:
        return f"the symbols have changed, but {error.filename} can't be written: {error.strerror}"


def frame_commands(debugger: BpfDebugger) -> list[MonitorCommand]:
    """What ``monitor`` knows of trampolines."""

    def frame(words: Sequence[str]) -> str:
        level = words[0] if words else "0"
        calls = len(debugger.backtrace())
        if not calls:
            raise GdbError("no frames: the thread has ended")
        if not (level.isascii() and level.isdigit() and int(level) < calls):
            raise GdbError(f"no frame {level}: there are 0 to {calls - 1}")
        found = debugger.frame(level=int(level))
        lines = [f"{found.function}, offsets from {found.base}"]
        for slot in found.slots:
            shown = f"  ; {slot.words}" if slot.words and slot.words not in slot.name else ""
            lines.append(f"{slot.address:#x}  {slot.offset:+#06x}  {slot.value:016x}  {slot.name}{shown}")
        return "\n".join(lines)

    def code(words: Sequence[str]) -> str:
        rip = debugger.rip
        lines = []
        for line in debugger.code():
            note = "; ".join(part for part in (line.comment, line.ebpf, line.source, line.patch) if part)
            mark = "=>" if line.address == rip else "  "
            text = f"{mark} {line.address:#x}  {line.phase or '-':8} {line.text}"
            lines.append(f"{text:64}  ; {note}" if note else text)
        return "\n".join(lines)

    return [
        MonitorCommand("frame [LEVEL]", "the stack frame of a function, slot by slot; 0 is the current one", frame),
        MonitorCommand("code", "the listing around the current instruction, with its comments", code),
    ]
