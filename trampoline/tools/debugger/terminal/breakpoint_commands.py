"""Commands for breakpoints and watchpoints."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emu import events
from emu.debug import Debugger as KernelDebugger
from trampoline.bpf.errors import TrampolineError
from trampoline.phases import check_phase
from trampoline.tools.debugger import AtAddress, AtEvent, AtPhase, Breakpoint, DataAccess, When
from trampoline.tools.debugger.debugger import AtProgram
from trampoline.tools.debugger.terminal.breakpoint_text import breakpoint_text
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.expressions import WORD, StepperExpression
from trampoline.tools.debugger.terminal.motion_commands import number, to_breakpoint
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import line

_IF = re.compile(r"(?:^|\s)if\s+")
MOST_WATCHED = 4096
"""Largest number of bytes that one watchpoint covers."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a breakpoint: an expression that is not 0."""

    text: str
    expression: StepperExpression

    def __call__(self, debugger: KernelDebugger) -> bool:
        """True if the condition holds."""
        return self.expression.value(debugger, debugger.kernel.kallsyms) != 0

    def __str__(self) -> str:
        return self.text


def add(session: StepperSession, rest: str) -> CommandResult:
    """``break [PLACE] [if CONDITION]``"""
    return _added(session, place(session, rest))


def until(session: StepperSession, rest: str) -> CommandResult:
    """``until PLACE``"""
    if not rest:
        raise TrampolineError("until: no place; pass a symbol, *EXPR, phase NAME, program NAME or event KIND")
    return to_breakpoint(session, place(session, rest))


def watch(how: str) -> Callable[[StepperSession, str], CommandResult]:
    """Make the command ``watch EXPR [BYTES]`` for one kind of access: ``r``, ``w`` or ``rw``."""
    return lambda session, rest: _watched(session, rest, how)


def delete(session: StepperSession, rest: str) -> CommandResult:
    """``delete [NUMBER]``"""
    wanted = number(rest, "which breakpoint", least=1) if rest else None
    found = [one for one in session.debugger.breakpoints if wanted in (None, session.number(one))]
    if wanted is not None and not found:
        raise TrampolineError(f"no breakpoint {wanted}")
    for one in found:
        session.debugger.remove(one)
    return CommandResult((line(f"{len(found)} deleted"),))


def place(session: StepperSession, text: str) -> Breakpoint:
    """The breakpoint for ``PLACE [if CONDITION]``. Raises TrampolineError; KernelError for an unknown symbol."""
    where, *rest = _IF.split(text, maxsplit=1)
    where = where.strip()
    condition = Condition(rest[0].strip(), StepperExpression(rest[0])) if rest else None
    if condition is not None:
        condition(session.debugger)  # an unknown name is rejected now, not at the breakpoint
    word, _, of = where.partition(" ")
    if word in _KINDS:
        if condition is not None:
            raise TrampolineError(f"a {word} takes no condition: {text!r}")
        return _KINDS[word](session, of.strip())
    if not where and condition is not None:
        return When(condition, condition.text)
    return AtAddress(_address(session, where), condition)


def _phase(session: StepperSession, name: str) -> Breakpoint:
    return AtPhase(check_phase(name))


def _program(session: StepperSession, name: str) -> Breakpoint:
    known = [prog.name for prog in session.debugger.lab.programs.loaded.values()]
    if name and name not in known:
        raise TrampolineError(f"no program {name!r}; the programs are {', '.join(known)}")
    return AtProgram(name or None)


def _event(session: StepperSession, name: str) -> Breakpoint:
    return AtEvent(_event_kind(name))


_KINDS: Mapping[str, Callable[[StepperSession, str], Breakpoint]] = {
    "phase": _phase,
    "program": _program,
    "event": _event,
}
"""Parsers of places that are not addresses, by first word."""


def _address(session: StepperSession, where: str) -> int | str:
    debugger = session.debugger
    if not where:
        return debugger.registers()["rip"]
    expression = StepperExpression(where.removeprefix("*"))
    address = expression.value(debugger, debugger.kernel.kallsyms)
    # A symbol keeps its name for the list of breakpoints.
    return where if re.fullmatch(r"[A-Za-z_][\w.:]*", where) else address


def _event_kind(name: str) -> str | None:
    if name in ("", "any"):
        return None
    kinds = sorted(
        kind
        for kind, found in vars(events).items()
        if isinstance(found, type) and issubclass(found, events.Event) and found is not events.Event
    )
    bare = name.replace("-", "").replace("_", "").lower()
    found = next((kind for kind in kinds if kind.lower() == bare), None)
    if found is None:
        raise TrampolineError(f"no event {name!r}; the kinds are {', '.join(kinds)}")
    return found


def _watched(session: StepperSession, rest: str, how: str) -> CommandResult:
    if not rest:
        raise TrampolineError("watch: no address; pass an expression and a number of bytes")
    # A number after an operand is the size; after an operator it belongs to the address.
    match = re.fullmatch(r"(.*[\w)])\s+(\d+)", rest)
    where, size = (match[1], number(match[2], "bytes", least=1, most=MOST_WATCHED)) if match else (rest, WORD)
    debugger = session.debugger
    start = StepperExpression(where.removeprefix("*")).value(debugger, debugger.kernel.kallsyms)
    return _added(session, DataAccess(start, size, how))


def _added(session: StepperSession, wanted: Breakpoint) -> CommandResult:
    session.debugger.add(wanted)
    return CommandResult((line(f"breakpoint {session.number(wanted)}: {breakpoint_text(wanted)}"),))
