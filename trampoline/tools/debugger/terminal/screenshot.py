"""Picture of the screen."""

import asyncio
from concurrent.futures import Executor

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal.app import StepApp
from trampoline.tools.debugger.terminal.screen_style import LEAST_COLUMNS, LEAST_LINES
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import plain

MOST = (400, 200)
"""Smallest and largest pictures, in columns and lines."""


def screenshot(session: StepperSession, executor: Executor, commands: tuple[str, ...], size: tuple[int, int]) -> str:
    """The screen after the commands, as SVG. ``size``: columns and lines.

    Raises TrampolineError for a size outside the limits, and for a command that is rejected.
    """
    if not (LEAST_COLUMNS <= size[0] <= MOST[0] and LEAST_LINES <= size[1] <= MOST[1]):
        least, most = f"{LEAST_COLUMNS}x{LEAST_LINES}", f"{MOST[0]}x{MOST[1]}"
        raise TrampolineError(f"--size: {size[0]}x{size[1]} is not between {least} and {most}")
    app = StepApp(session, executor, commands)

    async def drawn() -> str:
        async with app.run_test(size=size) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            if app.failure is not None:
                raise app.failure
            if app.answer.is_error:
                raise TrampolineError(plain(app.answer.lines[0]))
            return app.export_screenshot(title=f"tramp step: {session.title}")

    return asyncio.run(drawn())
