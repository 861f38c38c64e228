"""Snapshot of the debugger at one position, independent of the debugger afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trampoline.tools.debugger import (
    AtAddress,
    BpfDebugger,
    Breakpoint,
    CallSite,
    CodeLine,
    CpuState,
    StackFrame,
    Thread,
)
from trampoline.tools.debugger.schedule import ScheduleStep
from trampoline.tools.debugger.terminal.event_text import event_text
from trampoline.tools.debugger.terminal.schedule_cursor import Along

CODE_LINES = 600
"""Instructions of the function that are shown around the present one, for scrolling."""
TRAPPED = "after an int3, before its handler"
"""State of a task between the two steps of a trap."""
SITE_LINES = 8
"""Instructions shown around a site that is being patched."""
EVENTS = 100
"""Number of latest events that are shown."""


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """A thread in the snapshot; ``state`` in words, ``cpu`` None for an operation."""

    number: int
    name: str
    state: str
    cpu: int | None
    is_task: bool
    is_done: bool

    @classmethod
    def of(cls, debugger: BpfDebugger, thread: Thread) -> "ThreadSeen":
        """Snapshot of a thread."""
        state = TRAPPED if debugger.is_trapped(thread) else str(thread.state)
        return cls(thread.number, thread.name, state, thread.cpu, thread.kind == "task", thread.is_done)


@dataclass(frozen=True, slots=True)
class ViewBaseline:
    """State before the last command, against which changes are measured."""

    thread: int | None
    registers: Mapping[str, int]
    frame: StackFrame | None
    events: int
    """Number of events so far."""

    @classmethod
    def of(cls, debugger: BpfDebugger) -> "ViewBaseline":
        """The present state."""
        thread = debugger.thread if debugger.threads else None
        registers = debugger.registers() if thread is not None and thread.kind == "task" else {}
        number = None if thread is None else thread.number
        return cls(number, registers, frame_of(debugger), len(debugger.events))

    @property
    def words(self) -> dict[int, int]:
        """Values of the frame's words, by guest address."""
        return {slot.address: slot.value for slot in self.frame.slots} if self.frame is not None else {}


@dataclass(frozen=True, slots=True)
class ScheduleSeen:
    """A schedule and its present step: index, from 0, of the step that makes the next move; None off the schedule."""

    steps: tuple[ScheduleStep, ...]
    present: int | None
    is_left: bool
    failure: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the panes show. ``end``: the last position reached so far."""

    title: str
    position: int
    end: int
    thread: ThreadSeen | None
    threads: tuple[ThreadSeen, ...]
    registers: Mapping[str, int]
    """Empty for an operation, which has no registers."""
    code: tuple[CodeLine, ...]
    labels: Mapping[int, tuple[str, ...]]
    """Labels of the code, by guest address."""
    frame: StackFrame | None
    chain: tuple[CallSite, ...]
    cpus: tuple[CpuState, ...]
    names: Mapping[int, str]
    """Symbols of the bytes that are being patched, by guest address."""
    grace_periods: tuple[str, ...]
    """Kinds of grace periods of which one can end."""
    events: tuple[tuple[int, str], ...]
    """Latest events in words, each with its position."""
    event_count: int
    breakpoints: Mapping[int, int]
    """Numbers of breakpoints, by address."""
    schedule: ScheduleSeen | None
    before: ViewBaseline
    words_before: Mapping[int, int]
    """The frame's words in ``before``."""

    @property
    def rip(self) -> int | None:
        """The instruction that is executed next."""
        return self.registers.get("rip")

    @property
    def current(self) -> CodeLine | None:
        """Listing line of the next instruction."""
        return next((row for row in self.code if row.address == self.rip), None)


def look(
    debugger: BpfDebugger,
    title: str,
    before: ViewBaseline | None,
    number: Callable[[Breakpoint], int],
    along: Along | None = None,
) -> Seen:
    """Snapshot of the present state. ``number`` numbers a breakpoint. Without ``before`` nothing is marked changed."""
    before = before or ViewBaseline.of(debugger)
    threads = debugger.threads
    thread = debugger.thread if threads else None
    is_task = thread is not None and thread.kind == "task"
    runs = is_task and thread is not None and not thread.is_done
    events = debugger.events
    cpus = tuple(debugger.vcpus())
    code = tuple(debugger.code(lines=CODE_LINES)) if runs else _patched(debugger)
    return Seen(
        title=title,
        position=debugger.position,
        end=debugger.end,
        thread=None if thread is None else ThreadSeen.of(debugger, thread),
        threads=tuple(ThreadSeen.of(debugger, one) for one in threads),
        registers=debugger.registers() if is_task else {},
        code=code,
        labels=_labels(debugger, code),
        frame=frame_of(debugger),
        chain=tuple(debugger.backtrace()) if is_task else (),
        cpus=cpus,
        grace_periods=debugger.grace_periods,
        names={part.address: debugger.symbol(part.address) for cpu in cpus for part in cpu.pending},
        events=tuple((position, event_text(event, debugger.symbol)) for position, event in events[-EVENTS:]),
        event_count=len(events),
        breakpoints={
            debugger.address_of(one.where): number(one) for one in debugger.breakpoints if isinstance(one, AtAddress)
        },
        schedule=None if along is None else _schedule(along),
        before=before,
        words_before=before.words,
    )


def _schedule(along: Along) -> ScheduleSeen:
    debugger = along.debugger
    return ScheduleSeen(tuple(debugger.schedule), along.present, along.is_left, debugger.failure)


def _patched(debugger: BpfDebugger) -> tuple[CodeLine, ...]:
    """Code around the site that is being patched; empty if there is none."""
    pending = [part.address for cpu in debugger.vcpus() for part in cpu.pending]
    return tuple(debugger.code(min(pending), SITE_LINES)) if pending else ()


def _labels(debugger: BpfDebugger, code: tuple[CodeLine, ...]) -> dict[int, tuple[str, ...]]:
    image = debugger.kernel.machine.images.at(code[0].address) if code else None
    found: dict[int, tuple[str, ...]] = {}
    for name, address in image.symbols.items() if image is not None else ():
        found[address] = (*found.get(address, ()), name)
    return found


def frame_of(debugger: BpfDebugger) -> StackFrame | None:
    """The frame of the current thread; None for an operation, and for a task that has ended."""
    if not debugger.threads or debugger.thread.kind != "task" or debugger.thread.is_done:
        return None
    return debugger.frame()
