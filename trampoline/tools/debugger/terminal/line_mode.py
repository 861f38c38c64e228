"""``--plain``: stepping line by line, for pipes, logs and simple terminals."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trampoline.phases import check_phase
from trampoline.tools.debugger import CodeLine, DebugStopReason, Thread
from trampoline.tools.debugger.terminal import panes
from trampoline.tools.debugger.terminal.changes import effects
from trampoline.tools.debugger.terminal.command_table import perform
from trampoline.tools.debugger.terminal.event_text import event_text
from trampoline.tools.debugger.terminal.motion_commands import reason
from trampoline.tools.debugger.terminal.schedule_cursor import Along
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import plain
from trampoline.tools.debugger.terminal.view_model import TRAPPED, ViewBaseline

HERE = "=>"
"""Mark before the instruction that is executed next."""
PROMPT = "(tramp) "
"""Prefix of echoed commands."""
_TEXT = 36
"""Width of the instruction column, in front of the changes."""


@dataclass(frozen=True, slots=True)
class Position:
    """State at one position: the next instruction, or the point that an operation has reached."""

    position: int
    thread: Thread
    code: CodeLine | None
    phase: str | None
    """Phase that the instruction belongs to; None without one."""
    state: str
    marks: ViewBaseline


class Plain:
    """Execution as lines of text. ``phase``: only instructions of this phase; ``most``: their largest number."""

    def __init__(self, session: StepperSession, *, phase: str | None = None, most: int | None = None) -> None:
        self._session, self._debugger = session, session.debugger
        self._phase, self._left = phase if phase is None else check_phase(phase), most
        self._thread: Thread | None = None
        self._function = self._source = ""
        self._events = len(self._debugger.events)
        self.faulted = False
        """True if the guest faulted in a way that is fatal to the kernel."""

    def everything(self) -> Iterator[str]:
        """Run all threads to their ends; one line per instruction or point of an operation."""
        debugger, waiting = self._debugger, set[Thread]()
        yield self._session.title
        if self._session.along is not None:
            yield from self._followed(self._session.along)
            return
        while self._left != 0:
            alive = [thread for thread in debugger.threads if not thread.is_done]
            if not alive:
                return
            if debugger.thread not in alive:
                debugger.select(alive[0])
            before = self._place()
            stop = debugger.step()
            if stop.reason is DebugStopReason.BLOCKED:
                waiting.add(before.thread)
                yield from self._told(before, f"waits: {stop.message}")
                others = [thread for thread in alive if thread not in waiting]
                if others:
                    debugger.select(others[0])
                    continue
                stop = debugger.run(1)  # any thread that can run: the end of a grace period, a task to wake
                yield from self._happened()
                if stop.reason is DebugStopReason.BLOCKED:
                    return
                debugger.select(before.thread)
                waiting.clear()
                continue
            waiting.clear()
            if stop.reason is DebugStopReason.FAULT:
                self.faulted = True
                yield from self._here()
                yield f"{'':8}{reason(self._session, stop)}"
                return
            yield from self._executed(before)
            if stop.reason is DebugStopReason.DONE:
                yield from self._told(before, reason(self._session, stop))

    def _followed(self, along: Along) -> Iterator[str]:
        """Follow a schedule: every instruction and point of its steps."""
        debugger, told = self._debugger, -1
        while self._left != 0:
            along.choose()
            present = along.present
            if present is not None and present != told:
                told, step = present, along.debugger.schedule[present]
                self._thread, self._function = debugger.thread, ""
                yield f"{debugger.position:>7} step {present + 1}, {step.token}: {step.name}, {step.where}"
            before = self._place()
            stop = along.step(1)
            if debugger.position == before.position or stop.reason is not DebugStopReason.STEP:
                yield from self._executed(before) if debugger.position != before.position else ()
                self.faulted = bool(along.debugger.failure)
                yield f"{debugger.position:>7} {stop.message}"
                return
            if before.code is not None and debugger.registers(before.thread)["rip"] != before.code.address:
                yield from self._executed(before)
            yield from self._happened()

    def commands(self, texts: Iterable[str]) -> Iterator[str]:
        """Execute commands and print their results; after each move, the new position."""
        yield self._session.title
        yield from self._here()
        for text in texts:
            text = text.strip()
            if not text or text[0] == "#":
                continue
            yield f"{PROMPT}{text}"
            printed = list[str]()
            before = self._place()
            self._session.after_instruction = self._each(before, printed)
            answer = perform(self._session, text)
            yield from printed
            yield from self._happened()
            yield from map(plain, answer.lines)
            if answer.leaves:
                return
            if answer.moved:
                yield from self._here(None if printed else before)

    def _each(self, before: Position, printed: list[str]) -> Callable[[], None]:
        def note() -> None:
            nonlocal before
            printed.extend(self._executed(before))
            before = self._place()

        return note

    def _place(self) -> Position:
        debugger, thread = self._debugger, self._debugger.thread
        runs = thread.kind == "task" and not thread.is_done
        is_trapped = runs and debugger.is_trapped(thread)
        code = debugger.code_line(debugger.rip) if runs and not is_trapped else None
        phase = self._phase_of(code) if code is not None and self._phase is not None else None
        state = TRAPPED if is_trapped else thread.state
        return Position(debugger.position, thread, code, phase, state, ViewBaseline.of(debugger))

    def _phase_of(self, code: CodeLine) -> str | None:
        """Phase of the instruction, or of its caller: programs and original functions may have none."""
        debugger = self._debugger
        calls = (debugger.phase(site.address - 1) for site in debugger.backtrace()[1:])
        return next((phase for phase in (code.phase, *calls) if phase is not None), None)

    def _executed(self, before: Position) -> Iterator[str]:
        """The instruction that was executed at a place, with its effects."""
        code = before.code
        if code is None:
            yield from self._told(before, before.state)
        elif self._phase in (None, before.phase):
            done = effects(before.marks, ViewBaseline.of(self._debugger), pushes=True)
            yield from self._row(before, done, "  ")
            if self._left is not None:
                self._left -= 1
        yield from self._happened()

    def _here(self, before: Position | None = None) -> Iterator[str]:
        """The present position; with ``before``, the changes since then."""
        place = self._place()
        if place.code is None:
            yield from self._told(place, place.state)
        else:
            yield from self._row(place, effects(before.marks, place.marks) if before is not None else [], HERE)

    def _row(self, place: Position, done: list[str], mark: str) -> Iterator[str]:
        code = place.code
        assert code is not None
        yield from self._heading(place.thread)
        function, offset = panes.place_of(code)
        if function != self._function:
            self._function = function
            yield f"{'':8}<{function}>:"
        if code.source and code.source != self._source:
            yield f"{'':8}; {code.source}"
        self._source = code.source
        note = panes.remark(code)
        parts = [f"{mark}{place.position:>5} {offset:<7}{code.phase or '':<8}{code.text:<{_TEXT}}", *done]
        yield " ".join([*parts, f"; {note}"] if note else parts).rstrip()

    def _told(self, place: Position, text: str) -> Iterator[str]:
        yield from self._heading(place.thread)
        yield f"{place.position:>7} {text}"

    def _heading(self, thread: Thread) -> Iterator[str]:
        if thread is not self._thread and (self._thread is not None or len(self._debugger.threads) > 1):
            self._function = ""
            yield f"thread {thread.number}, {thread.name}:"
        self._thread = thread

    def _happened(self) -> Iterator[str]:
        """Events since the last call."""
        events = self._debugger.events
        for position, event in events[self._events :]:
            yield f"{position:>7} ! {event_text(event, self._debugger.symbol)}"
        self._events = len(events)
