"""Commands that show state, or change a register or memory."""

import re
from collections.abc import Callable, Mapping

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal import panes
from trampoline.tools.debugger.terminal.breakpoint_text import breakpoint_text
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.expressions import MASK, WORD, StepperExpression, register
from trampoline.tools.debugger.terminal.motion_commands import number
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line
from trampoline.tools.debugger.terminal.view_model import Seen

_FORMAT = re.compile(r"/(\d*)([a-z]*)\s*(.*)", re.DOTALL)
_SET = re.compile(r"(\$\w+|\*.+?)\s*=(?!=)\s*(.+)", re.DOTALL)
MOST_WORDS = 1024
"""Largest number of words or instructions that ``x`` shows."""
_PER_LINE = 2


def info(session: StepperSession, rest: str) -> CommandResult:
    """``info registers`` and the like; a unique prefix of the topic is enough."""
    if not rest:
        raise TrampolineError(f"info: no topic; the topics are {', '.join(SHOWN)}")
    found = next((show for name, show in SHOWN.items() if name.startswith(rest)), None)
    if found is None:
        raise TrampolineError(f"no info about {rest!r}; the topics are {', '.join(SHOWN)}")
    return CommandResult(found(session) or (line("nothing"),))


def backtrace(session: StepperSession, rest: str) -> CommandResult:
    """``backtrace``"""
    return info(session, "chain")


def show_value(session: StepperSession, rest: str) -> CommandResult:
    """``print EXPRESSION``"""
    value = _value(session, rest)
    signed = value - (1 << 64) if value >> 63 else value
    name = session.debugger.symbol(value)
    known = name != f"{value:#x}"
    return CommandResult((line(f"{value:#x} = {signed}", Span(f"  <{name}>" if known else "", Role.NAME)),))


def memory(session: StepperSession, rest: str) -> CommandResult:
    """``x/8x $rsp``, ``x/10i bpf_fentry_test1``"""
    match = _FORMAT.fullmatch(rest)
    digits, form, where = match.groups() if match else ("", "", rest)
    words = number(digits, "how many", least=1, most=MOST_WORDS) if digits else 1
    if set(form) - set("xgi"):
        raise TrampolineError(f"x/{digits}{form}: x shows words (x/4x), or instructions (x/10i)")
    address = _value(session, where)
    if "i" in form:
        seen = session.look()
        around = session.debugger.code(address, lines=2 * words)
        code = [found for found in around if found.address + len(found.code) > address]
        return CommandResult(tuple(panes.code_line(found, seen) for found in code[:words]))
    data = session.debugger.read(address, WORD * words)
    rows = []
    for first in range(0, words, _PER_LINE):
        values = [
            int.from_bytes(data[WORD * at : WORD * (at + 1)], "little")
            for at in range(first, min(first + _PER_LINE, words))
        ]
        text = "".join(f"  {value:016x}" for value in values)
        rows.append(line(Span(f"{address + WORD * first:x}:", Role.FAINT), text))
    return CommandResult(tuple(rows))


def change(session: StepperSession, rest: str) -> CommandResult:
    """``set $rax = 5``, ``set *($rbp - 8) = 5``"""
    match = _SET.fullmatch(rest)
    if match is None:
        raise TrampolineError("set: no assignment; pass $REG = EXPRESSION or *ADDRESS = EXPRESSION")
    what, text = match.groups()
    value = _value(session, text)
    debugger = session.debugger
    if what[0] == "$":
        debugger.set_register(register(what, debugger.registers()), value)
    else:
        debugger.write(_value(session, what[1:]), value.to_bytes(WORD, "little"))
    return CommandResult((line(f"{what.strip()} = {value:#x}"),), moved=True)


def _value(session: StepperSession, text: str) -> int:
    debugger = session.debugger
    return StepperExpression(text).value(debugger, debugger.kernel.kallsyms) & MASK


def _pane(show: Callable[[Seen], panes.PaneText]) -> Callable[[StepperSession], tuple[Line, ...]]:
    return lambda session: tuple(row.spans for row in show(session.look()).rows)


def _breakpoints(session: StepperSession) -> tuple[Line, ...]:
    return tuple(line(f"{session.number(one):<3} {breakpoint_text(one)}") for one in session.debugger.breakpoints)


SHOWN: Mapping[str, Callable[[StepperSession], tuple[Line, ...]]] = {
    "registers": _pane(panes.registers),
    "frame": _pane(panes.stack),
    "stack": _pane(panes.stack),
    "chain": _pane(panes.chain),
    "breakpoints": _breakpoints,
    "threads": _pane(panes.cpus),
    "cpus": _pane(panes.cpus),
    "events": _pane(panes.events),
    "code": _pane(panes.code),
}
