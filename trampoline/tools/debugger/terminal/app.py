"""The full-screen view: panes, keys and a command line over a Session. ``panes`` supplies the text."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.widget import Widget

from trampoline.tools.debugger.terminal import panes
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.command_table import perform
from trampoline.tools.debugger.terminal.keys import ALWAYS, BY_KEYS, HINTS, PREFIXES, SCHEDULE_HINTS, key_lines, shown
from trampoline.tools.debugger.terminal.prompt import CommandLine, Page
from trampoline.tools.debugger.terminal.screen_style import CSS, LEAST_COLUMNS, LEAST_LINES, TALL, WIDE
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line
from trampoline.tools.debugger.terminal.view_model import Seen
from trampoline.tools.debugger.terminal.widgets import CodePane, Pane, TextLine

_T = TypeVar("_T")
IN_TURN = ("registers", "chain", "cpus", "events", "schedule")
"""Panes that a small terminal shows one at a time."""
BUSY_AFTER = 0.3
"""Seconds after which a running command is reported as running."""
BYTES_FROM = 100
"""Least width, in columns, of a code pane that shows instruction bytes."""


class StepApp(App[None]):
    """``tramp step``. ``executor`` has one thread, in which the session is used, so that the screen can interrupt it.

    ``begin``: commands that are executed first.
    """

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  Textual's own declaration
        (0, "-narrow-terminal"),
        (LEAST_COLUMNS, "-narrow"),
        (WIDE, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-low-terminal"),
        (LEAST_LINES, "-short"),
        (TALL, "-tall"),
    ]

    def __init__(self, session: StepperSession, executor: Executor, begin: tuple[str, ...] = ()) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.session = session
        self.seen: Seen | None = None
        self.cursor: int | None = None
        """Address of the cursor in the code; None while it follows the present instruction."""
        self.failure: Exception | None = None
        """An exception that commands may not raise; it has ended the app."""
        self.answer = CommandResult()
        """Result of the last command."""
        self._executor = executor
        self._wanted = deque(begin)
        self._works = False
        self._prefix = ""
        self._chosen: Widget | None = None
        """The pane that gets the focus back from the command line."""
        self._submits = False
        """True from typing a command until it is taken; keys pressed meanwhile wait in ``_early``."""
        self._early = list[events.Key]()

    # Layout ---------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The status line, the panes, the message line and the command line."""
        yield TextLine(id="status")
        with Container(id="panes"):
            for number, name in enumerate(panes.PANES, 1):
                yield (CodePane if name == "code" else Pane)(id=name, number=number)
        yield TextLine(id="message")
        with Container(id="command"):
            yield TextLine(id="hints")
            yield CommandLine()
        yield TextLine(id="small")

    def on_mount(self) -> None:
        """Show the initial state."""
        self.query_one("#prompt").display = False
        self.set_class(self.session.along is not None, "-scheduled")
        self._line("hints").show(HINTS if self.session.along is None else SCHEDULE_HINTS)
        self._show_in_turn(IN_TURN[0])
        self.app_resume_signal.subscribe(self, lambda _: self._repaint(""))
        self.query_one("#code").focus()
        self._go_on()

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the panes anew; a terminal that is too small shows the required size."""
        size = event.size
        text = f"{size.width}x{size.height} is too small: {LEAST_COLUMNS}x{LEAST_LINES} at least (q: quit)"
        self._line("small").show(line(text))
        if self.seen is not None:
            self._paint_code()

    # Keys -----------------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Handle keys in the order in which they were pressed, also if they arrive faster than widgets respond."""
        if not isinstance(event, events.Key) or event.is_forwarded or len(self.screen_stack) != 1:
            await super().on_event(event)
        elif self._submits:
            self._early.append(event)
        elif self._types and event.key not in ALWAYS:
            self._submits = event.key == "enter"
            await super().on_event(event)
        elif not self._press(event.key):
            if event.is_printable and event.character and "+" not in event.key:
                self._prompt(event.character)
            else:
                await super().on_event(event)

    def _press(self, key: str) -> bool:
        """Handle a key of ``keys.KEYS``, alone or after a prefix; false if it is not one."""
        prefix, self._prefix = self._prefix, ""
        if not prefix and key in PREFIXES:
            self._prefix = key
            self._say(line(f"{shown(key)} ..."))
            return True
        found = BY_KEYS.get((prefix, key) if prefix else (key,))
        if prefix:
            self._say(())
        if found is None:
            if prefix:
                self._say(line(Span(f"{shown(prefix)} {shown(key)} is no command", Role.WARNING)))
            return bool(prefix)
        if found.does.startswith("@"):
            name, _, rest = found.does[1:].partition(" ")
            _ACTIONS[name](self, rest)
        else:
            self.want(found.does)
        return True

    def on_input_submitted(self, event: CommandLine.Submitted) -> None:
        """Execute the command that was typed."""
        self.query_one(CommandLine).remember(event.value)
        self._close_prompt()
        self.want(event.value)

    @property
    def _types(self) -> bool:
        """True while the command line is open."""
        return bool(self.query_one(CommandLine).display)

    def _prompt(self, begin: str) -> None:
        prompt = self.query_one(CommandLine)
        self.query_one("#hints").display = False
        prompt.display = True
        prompt.begin(begin)
        self._chosen = self.focused
        self.screen.set_focus(prompt)

    def _close_prompt(self) -> None:
        self.query_one(CommandLine).display = False
        self.query_one("#hints").display = True
        self.screen.set_focus(self._chosen or self.query_one("#code"))
        self._submits = False
        early, self._early = self._early, []
        for key in early:
            self.post_message(key)

    def _cancel(self, rest: str) -> None:
        if self._types:
            self._close_prompt()
        elif self.cursor is not None:
            self.cursor = None
            self._paint_code()

    def _choose(self, rest: str) -> None:
        """Move to the pane with this number."""
        name = list(panes.PANES)[int(rest) - 1]
        if name == "schedule" and self.session.along is None:
            self._say(line("no schedule to follow: tramp replay STRING --step has one"))
            return
        self._show_in_turn(name)
        self.screen.set_focus(self.query_one(f"#{name}"))

    def _other(self, rest: str) -> None:
        """Move to the next pane, or the one before."""
        if not self._types:
            names = [name for name in panes.PANES if name != "schedule" or self.session.along is not None]
            at = names.index(self.focused.id or "") if isinstance(self.focused, Pane) else 0
            self._choose(str((at + (-1 if rest else 1)) % len(names) + 1))

    def _show_in_turn(self, name: str) -> None:
        if name in IN_TURN:
            for other in IN_TURN:
                self.query_one(f"#{other}").set_class(other != name, "-away")

    def _toggle_breakpoint(self, rest: str) -> None:
        if self.seen is None:
            return
        at = self.seen.rip if self.cursor is None else self.cursor
        number = None if at is None else self.seen.breakpoints.get(at)
        if number is not None:
            self.want(f"delete {number}")
        elif at is not None:
            self.want(f"break *{at:#x}")

    def _until(self, rest: str) -> None:
        if self.cursor is None:
            self._prompt("until ")
        else:
            self.want(f"until *{self.cursor:#x}")

    def _next_thread(self, rest: str) -> None:
        if self.seen is not None and self.seen.thread is not None:
            numbers = [thread.number for thread in self.seen.threads]
            at = numbers.index(self.seen.thread.number)
            self.want(f"thread {numbers[(at + 1) % len(numbers)]}")

    def _help(self, rest: str) -> None:
        self.push_screen(Page("help: q leaves, arrows scroll", key_lines()))

    def _interrupt(self, rest: str) -> None:
        self._wanted.clear()
        if self._works:
            self.session.interrupt()
        else:
            self._say(line("no command is running; q leaves"))

    def _repaint(self, rest: str) -> None:
        """Paint the whole screen again, to repair a terminal that shows something else."""
        for widget in self.screen.walk_children(with_self=True):
            widget.refresh()

    def _leave(self, rest: str) -> None:
        if self._works:
            self._interrupt("")
        self.want("quit")

    def on_code_pane_cursor_moved(self, event: CodePane.CursorMoved) -> None:
        """Move the cursor in the code."""
        if self.seen is None or not self.seen.code:
            return
        addresses = [row.address for row in self.seen.code]
        here = self.seen.rip if self.cursor is None else self.cursor
        at = addresses.index(here) if here in addresses else 0
        self.cursor = addresses[min(max(at + event.lines, 0), len(addresses) - 1)]
        self._paint_code()

    # Commands -------------------------------------------------------------------------------------------------------

    def want(self, text: str) -> None:
        """Execute a command as soon as those before it are done."""
        self._wanted.append(text)
        if not self._works:
            self._go_on()

    def _go_on(self) -> None:
        self._works = True
        self.run_worker(self._work())

    async def _work(self) -> None:
        """Execute the waiting commands, then paint once, so that typing ahead costs no painting."""
        busy = self.set_timer(BUSY_AFTER, lambda: self._say(line("running; Ctrl-C stops it")))
        answer = CommandResult()
        try:
            while self._wanted and not answer.leaves:
                answer = await self._ask(lambda: perform(self.session, self._wanted.popleft()))
                if answer.is_error:
                    self._wanted.clear()
            seen = await self._ask(self.session.look)
        except Exception as error:
            self.failure = error
        finally:
            busy.stop()
            self._works = False
        if answer.leaves or self.failure is not None:
            self.exit()
            return
        if self.seen is None or answer.moved:
            self.cursor = None
        self.seen, self.answer = seen, answer
        self._paint(answer)
        if self._wanted:
            self._go_on()

    async def _ask(self, question: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, question)

    # Painting -------------------------------------------------------------------------------------------------------

    def _paint(self, answer: CommandResult) -> None:
        seen = self.seen
        assert seen is not None
        self._line("status").show(panes.status(seen))
        for name, pane in panes.PANES.items():
            if name != "code":
                self.query_one(f"#{name}", Pane).show(pane(seen))
        self._paint_code()
        if len(answer.lines) > 1:
            self.push_screen(Page("q leaves, arrows scroll", answer.lines))
            self._say(())
        else:
            self._say(answer.lines[0] if answer.lines else panes.about(seen))

    def _paint_code(self) -> None:
        assert self.seen is not None
        code = self.query_one("#code", Pane)
        code.show(panes.code(self.seen, cursor=self.cursor, with_bytes=code.size.width >= BYTES_FROM))

    def _say(self, spans: Line) -> None:
        self._line("message").show(spans)

    def _line(self, name: str) -> TextLine:
        return self.query_one(f"#{name}", TextLine)


_ACTIONS: Mapping[str, Callable[[StepApp, str], None]] = {
    "until": StepApp._until,
    "break": StepApp._toggle_breakpoint,
    "thread": StepApp._next_thread,
    "command": lambda app, rest: app._prompt(""),
    "other": StepApp._other,
    "pane": StepApp._choose,
    "cancel": StepApp._cancel,
    "interrupt": StepApp._interrupt,
    "help": StepApp._help,
    "repaint": StepApp._repaint,
    "suspend": lambda app, rest: app.action_suspend_process(),
    "quit": StepApp._leave,
}
"""Actions of keys that are not commands."""
