"""Commands that move: forwards, backwards, to the next program, call, patch or event."""

from collections.abc import Callable
from typing import Literal, get_args

from trampoline.bpf.errors import TrampolineError
from trampoline.phases import check_phase
from trampoline.tools.debugger import AtPhase, Breakpoint, DebugStop, DebugStopReason
from trampoline.tools.debugger.schedule import ScheduleDebugger
from trampoline.tools.debugger.terminal.breakpoint_text import breakpoint_text
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.event_text import event_text
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import Role, Span, line

Next = Literal["program", "call", "patch", "event"]
"""Targets of ``to``, apart from phases."""
Move = Callable[[StepperSession, str], CommandResult]
"""A command; its argument is the text after its name."""
MOST = 10_000_000
"""Largest step count."""


def step(session: StepperSession, rest: str) -> CommandResult:
    """``stepi [N]``"""
    times = _count(rest)
    along = session.along
    follows = along is not None and along.is_next(session.debugger.thread)
    go = along.step if along is not None and follows else session.debugger.step
    if session.after_instruction is None:
        return moved(session, go(times))
    stop = go(1)
    session.after_instruction()
    for _ in range(times - 1):
        if stop.reason is not DebugStopReason.STEP:
            break
        stop = go(1)
        session.after_instruction()
    return moved(session, stop)


def repeated(move: str) -> Move:
    """Make the command for a debugger move that is repeated N times, until one ends otherwise: ``nexti [N]``."""
    return lambda session, rest: _repeated(session, getattr(session.debugger, move), rest)


def once(move: str) -> Move:
    """Make the command for a debugger move without arguments: ``finish``."""

    def do(session: StepperSession, rest: str) -> CommandResult:
        if rest:
            raise TrampolineError(f"{rest!r} is one word too many")
        return moved(session, getattr(session.debugger, move)())

    return do


def scheduled(move: str) -> Move:
    """Make the command that follows a schedule, once or N times: ``along [N]``."""
    return lambda session, rest: _repeated(session, getattr(_schedule(session), move), rest)


def _schedule(session: StepperSession) -> ScheduleDebugger:
    if session.along is None:
        raise TrampolineError("no schedule to follow: tramp replay STRING --step has one")
    if session.along.is_left:
        raise TrampolineError("a step has left the schedule: goto 0 starts again, without it")
    return session.along.debugger


def back(session: StepperSession, rest: str) -> CommandResult:
    """``reverse-stepi [N]``"""
    return moved(session, session.debugger.back(_count(rest)))


def goto(session: StepperSession, rest: str) -> CommandResult:
    """``goto POSITION``"""
    position = number(rest, "position", least=0)
    return moved(session, session.debugger.goto(max(position, session.start)))


def to_phase(session: StepperSession, rest: str) -> CommandResult:
    """``phase [NAME]``"""
    if not rest:
        return moved(session, session.debugger.run_to("phase"))
    return to_breakpoint(session, AtPhase(check_phase(rest)))


def to(session: StepperSession, rest: str) -> CommandResult:
    """``to program``, ``to call``, ``to patch``, ``to event``"""
    found: Next | None = next((what for what in get_args(Next) if what == rest), None)
    if found is None:
        raise TrampolineError(f"to: no target; pass one of {', '.join(get_args(Next))}")
    return moved(session, session.debugger.run_to(found))


def to_breakpoint(session: StepperSession, wanted: Breakpoint) -> CommandResult:
    """Run to a temporary breakpoint, which is removed afterwards."""
    debugger = session.debugger
    if wanted in debugger.breakpoints:
        return moved(session, debugger.run())
    debugger.add(wanted)
    try:
        stop = debugger.run()
    finally:
        debugger.remove(wanted)
    if stop.breakpoint == wanted:
        stop = stop._replace(reason=DebugStopReason.STEP)
    return moved(session, stop)


def moved(session: StepperSession, stop: DebugStop) -> CommandResult:
    """The command result for the end of a move."""
    if stop.position < session.start:
        # At the start no thread has a state to compare with.
        stop = session.debugger.goto(session.start)._replace(reason=DebugStopReason.START)
    if session.along is not None:
        session.along.note()
        session.along.choose()
    text = reason(session, stop)
    role = Role.WARNING if stop.reason is DebugStopReason.FAULT else Role.PLAIN
    return CommandResult((line(Span(text, role)),) if text else (), moved=True)


def reason(session: StepperSession, stop: DebugStop) -> str:
    """Reason for the end of a move; empty if the move was completed."""
    match stop.reason:
        case DebugStopReason.STEP:
            return stop.message
        case DebugStopReason.BREAKPOINT if stop.breakpoint is not None:
            return f"breakpoint {session.number(stop.breakpoint)}: {breakpoint_text(stop.breakpoint)}"
        case DebugStopReason.EVENT if stop.event is not None:
            return f"event: {event_text(stop.event, session.debugger.symbol)}"
        case DebugStopReason.DONE:
            return stop.message or f"{stop.thread.name if stop.thread else 'it'} has ended{_value(stop)}"
        case DebugStopReason.START:
            return "at the start"
        case _:
            return ": ".join(part for part in (str(stop.reason), stop.message) if part)


def _value(stop: DebugStop) -> str:
    value = getattr(stop.thread, "value", None)
    return "" if value is None else f": {value:#x}"


def _repeated(session: StepperSession, move: Callable[[], DebugStop], rest: str) -> CommandResult:
    times = _count(rest)
    stop = move()
    for _ in range(times - 1):
        if stop.reason is not DebugStopReason.STEP:
            break
        stop = move()
    return moved(session, stop)


def _count(rest: str) -> int:
    return number(rest, "count", least=1) if rest else 1


def number(text: str, what: str, *, least: int, most: int = MOST) -> int:
    """Parse a decimal number. Raises TrampolineError if it is none or out of range."""
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise TrampolineError(f"{what}: expected a number from {least} to {most}, not {text!r}")
    return int(text)
