"""``tramp step``: chooses screen, lines or picture, and runs the debugger in its host thread."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from trampoline.bpf.errors import TrampolineError
from trampoline.extras import extra
from trampoline.lab import Workload, open_workload
from trampoline.phases import check_phase
from trampoline.tools.debugger import BpfDebugger
from trampoline.tools.debugger.schedule import debugger_for_schedule
from trampoline.tools.debugger.terminal.line_mode import Plain
from trampoline.tools.debugger.terminal.schedule_cursor import Along
from trampoline.tools.debugger.terminal.session import StepperSession


@dataclass(frozen=True, slots=True)
class Stepping:
    """Options of the output. ``commands`` are executed first, then those of the file ``script`` ("-": standard input).

    ``most`` (lines of instructions) and ``phase`` (only this one) imply line mode; ``screenshot`` makes a picture of
    ``size`` (columns, lines) and opens no screen.
    """

    plain: bool = False
    most: int | None = None
    phase: str | None = None
    commands: tuple[str, ...] = ()
    script: str | None = None
    screenshot: Path | None = None
    size: tuple[int, int] = (120, 40)

    @property
    def is_plain(self) -> bool:
        """True if lines are printed: on request, or if the terminal cannot show the screen."""
        return self.plain or self.most is not None or self.phase is not None or not has_screen()


def has_screen() -> bool:
    """True if standard input and output are a terminal that can show the screen."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


def step_schedule(address: str, how: Stepping) -> int:
    """Step through a schedule that ``tramp explore`` printed. Exit status: 1 if it has a violation, which is printed.

    Raises BadSchedule, TrampolineError or KernelError if a part of the address is unknown.
    """

    @contextmanager
    def opening() -> Iterator[StepperSession]:
        with closing(debugger_for_schedule(address)) as debugger:
            yield StepperSession(debugger, address, Along(debugger))

    return step(opening, how)


Opening = Callable[[], AbstractContextManager[StepperSession]]
"""Context manager that opens and closes a session."""


def step_target(options: Workload, how: Stepping) -> int:
    """Step through a workload. Exit status: 1 if the guest faulted under ``--plain``.

    Raises TrampolineError and what opening the workload raises, before any output; OSError for a file.
    """

    @contextmanager
    def opening() -> Iterator[StepperSession]:
        with open_workload(options) as ready, closing(BpfDebugger(ready.lab)) as debugger:
            ready.begin(debugger)
            yield StepperSession(debugger, ready.title)

    return step(opening, how)


def step(opening: Opening, how: Stepping) -> int:
    """Step through a session, as ``step_target`` does."""
    if how.phase is not None:
        check_phase(how.phase)
    if how.screenshot is not None:
        if how.plain or how.most is not None or how.phase is not None:
            raise TrampolineError("--screenshot: not with --plain, --max or --phase, which print lines")
        return _screenshot(opening, how, how.screenshot)
    return _print(opening, how) if how.is_plain else _show(opening, how)


def _print(opening: Opening, how: Stepping) -> int:
    commands = _commands(how)
    with opening() as session:
        printed = Plain(session, phase=how.phase, most=how.most)
        has_commands = how.commands or how.script is not None
        lines = printed.commands(commands) if has_commands else printed.everything()
        for line in lines:
            print(line, flush=sys.stdout.isatty())
        return 1 if printed.faulted else 0


def _show(opening: Opening, how: Stepping) -> int:
    with extra("terminal", "the screen (--plain prints lines)"):
        from trampoline.tools.debugger.terminal.app import StepApp

    if how.script == "-":
        raise TrampolineError("-x -: the screen reads keys from standard input; --plain reads commands from it")
    commands = tuple(_commands(how))
    with _elsewhere(opening) as (session, executor):
        app = StepApp(session, executor, commands)
        app.run(mouse=False)
        if app.failure is not None:
            raise app.failure
        return app.return_code or 0


def _screenshot(opening: Opening, how: Stepping, path: Path) -> int:
    from emu.atomic_file import write_whole

    with extra("terminal", "--screenshot"):
        from trampoline.tools.debugger.terminal.screenshot import screenshot

    commands = tuple(_commands(how))
    with _elsewhere(opening) as (session, executor):
        write_whole({path: screenshot(session, executor, commands, how.size)})
    return 0


def _commands(how: Stepping) -> Iterable[str]:
    given = [command for text in how.commands for command in text.split(";")]
    if how.script == "-":
        return chain(given, sys.stdin)  # a line at a time: the user may be typing
    if how.script is None:
        return given
    return (*given, *Path(how.script).read_text(encoding="utf-8").splitlines())


@contextmanager
def _elsewhere(opening: Opening) -> Iterator[tuple[StepperSession, Executor]]:
    """The session in a host thread of its own, since greenlets cannot leave the thread that started them."""
    with ThreadPoolExecutor(1, "debugger") as executor:
        stack = ExitStack()
        session = executor.submit(lambda: stack.enter_context(opening())).result()
        try:
            yield session, executor
        finally:
            session.interrupt()
            executor.submit(stack.close).result()
