"""gdb remote server for a target: ``tramp gdb``."""

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
    """Serve a target to gdb, one connection after another; with ``once``, to one connection only.

    ``tell`` receives lines for the user; the last line is the command that starts gdb. Raises what ``open_workload``
    raises; GdbError if the address or the port cannot be used; OSError if the symbol file cannot be written.
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
    """Lines that name the target and its threads, and the gdb command that connects."""
    place = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    threads = [f"thread {number}: {call.text} on cpu {call.cpu}" for number, call in enumerate(ready.calls, 1)]
    threads += [f"thread {number}: {name}" for number, (name, _) in enumerate(ready.operations, len(threads) + 1)]
    return [ready.title, *threads, f"gdb -ex 'target remote {place}' {shlex.quote(str(path))}"]


def changed(file: SymbolFile) -> str:
    """Bring the symbol file up to date; the message for gdb if that changed the file or failed."""
    try:
        return f"the symbols have changed: symbol-file {file.path}" if file.update() else ""
    except OSError as error:
        return f"the symbols have changed, but {error.filename} cannot be written: {error.strerror}"


def frame_commands(debugger: BpfDebugger) -> list[MonitorCommand]:
    """The ``monitor`` commands for trampolines."""

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
