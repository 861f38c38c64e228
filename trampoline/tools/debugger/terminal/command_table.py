"""The command line: commands by name, as in gdb, and their implementations."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emu.errors import EmuError
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal import breakpoint_commands as breakpoints
from trampoline.tools.debugger.terminal import inspection_commands as inspection
from trampoline.tools.debugger.terminal import motion_commands as motions
from trampoline.tools.debugger.terminal import schedule_commands as scheduling
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line

_WORDS = re.compile(r"([A-Za-z][\w-]*)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepperCommand:
    """A command: its names, the full one first; its arguments; a summary."""

    names: tuple[str, ...]
    usage: str
    summary: str
    do: Callable[[StepperSession, str], CommandResult]
    repeats: bool = False
    """True if an empty line repeats it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of commands in the help text."""

    title: str
    commands: tuple[StepperCommand, ...]


def _print(session: StepperSession, rest: str) -> CommandResult:
    return inspection.show_value(session, rest) if rest else motions.to_phase(session, "")


def _quit(session: StepperSession, rest: str) -> CommandResult:
    return CommandResult(leaves=True)


def _help(session: StepperSession, rest: str) -> CommandResult:
    if not rest:
        return CommandResult(help_lines())
    command = COMMANDS.get(rest)
    if command is None:
        raise TrampolineError(f"no command {rest!r}; help shows them all")
    return CommandResult((_summary(command),))


def _command(
    names: str, usage: str, summary: str, do: Callable[[StepperSession, str], CommandResult], repeats: bool = False
) -> StepperCommand:
    return StepperCommand(tuple(names.split()), usage, summary, do, repeats)


GROUPS = (
    Group("Forwards", (
        _command("stepi s si step", "[N]", "an instruction, or N", motions.step, True),
        _command("nexti n ni next", "[N]", "the same, a call being one", motions.repeated("step_over"), True),
        _command("finish f fin", "", "until the present function has returned", motions.once("step_out"), True),
        _command("continue c", "", "to a breakpoint, the end, a fault", motions.once("run"), True),
        _command("until u advance", "PLACE", "to a place, as for break", breakpoints.until),
        _command("phase", "[NAME]", "to the next phase, or to that one; p alone too", motions.to_phase, True),
        _command(
            "along a", "[N]", "to the end of the schedule's present step, or N",
            motions.scheduled("next_in_schedule"), True,
        ),
        _command("to", "WHAT", "to the next program, call, patch or event", motions.to, True),
    )),
    Group("Backwards", (
        _command("reverse-stepi rs rsi reverse-step", "[N]", "an instruction, or N", motions.back, True),
        _command(
            "reverse-nexti rn rni reverse-next", "[N]", "the same, a call being one",
            motions.repeated("back_over"), True,
        ),
        _command("reverse-finish rf", "", "to the call of the present function", motions.once("back_out"), True),
        _command("reverse-continue rc", "", "to a breakpoint, or the start", motions.once("run_back"), True),
        _command(
            "reverse-along ra", "[N]", "back to where it begins, or N steps",
            motions.scheduled("back_in_schedule"), True,
        ),
        _command("goto", "POSITION", "to a position that was reached before", motions.goto),
    )),
    Group("Breakpoints", (
        _command("break b br", "[PLACE] [if EXPR]", "there; without PLACE here", breakpoints.add),
        _command("watch", "EXPR [BYTES]", "after writes to memory there", breakpoints.watch("w")),
        _command("rwatch", "EXPR [BYTES]", "after reads", breakpoints.watch("r")),
        _command("awatch", "EXPR [BYTES]", "after both", breakpoints.watch("rw")),
        _command("delete d", "[NUMBER]", "delete a breakpoint, or all", breakpoints.delete),
    )),
    Group("Threads and CPUs", (
        _command("thread t", "[NUMBER]", "step this thread; without NUMBER: list", scheduling.thread),
        _command("preempt", "[THREAD]", "take its CPU from it", scheduling.preempt),
        _command("wake", "[THREAD]", "wake a sleeping task", scheduling.wake),
        _command("place", "CPU", "continue a preempted task on this CPU", scheduling.place),
        _command("adopt", "[CPU]", "let a CPU see what was written to text", scheduling.adopt),
        _command("grace", "KIND", "end a grace period; its callbacks are a thread", scheduling.grace),
    )),
    Group("Looking and changing", (
        _command("info i", "WHAT", "a pane; breakpoints", inspection.info),
        _command("backtrace bt where", "", "the call chain", inspection.backtrace),
        _command("print p", "EXPR", "a value", _print),
        _command("x", "[/N[x|i]] EXPR", "N words of memory, or instructions", inspection.memory),
        _command("set", "WHAT = EXPR", "a register ($rax), a word (*EXPR)", inspection.change),
    )),
    Group("Other", (_command("help h", "[COMMAND]", "this", _help), _command("quit q exit", "", "leave", _quit))),
)  # fmt: skip
COMMANDS: Mapping[str, StepperCommand] = {
    name: command for group in GROUPS for command in group.commands for name in command.names
}
"""Commands by each of their names."""
PLACES = (
    "PLACE is a symbol, *EXPR, phase NAME, program [NAME] or event [KIND].",
    "EXPR is C on 64-bit words: $rax + 8, vfs_read, *($rbp - 8), $rdi == 2.",
)


def perform(session: StepperSession, text: str) -> CommandResult:
    """Execute a command line; an empty one repeats the last move. The result of a rejected command is its error."""
    text = text.strip() or session.last
    if not text or text[0] == "#":
        return CommandResult()
    session.last = ""
    try:
        command, rest = _found(text)
        session.mark()
        answer = command.do(session, rest)
    except (TrampolineError, EmuError) as error:
        message = "; ".join(part.strip() for part in str(error).splitlines() if part.strip())
        return CommandResult((line(Span(message, Role.WARNING)),), is_error=True)
    if command.repeats:
        session.last = text
    return answer


def _found(text: str) -> tuple[StepperCommand, str]:
    match = _WORDS.fullmatch(text)
    if match is None:
        raise TrampolineError(f"{text!r} is no command; help shows them all")
    name, rest = match.groups()
    if name in COMMANDS:
        return COMMANDS[name], rest
    begun = {full: COMMANDS[full] for full in COMMANDS if full.startswith(name)}
    found = list({id(command): command for command in begun.values()}.values())
    if len(found) == 1:
        return found[0], rest
    if found:
        raise TrampolineError(f"{name!r} could be {', '.join(begun)}")
    raise TrampolineError(f"no command {name!r}; help shows them all")


def help_lines() -> tuple[Line, ...]:
    """Help lines of all commands, by group."""
    rows = list[Line]()
    for group in GROUPS:
        rows += [line(Span(group.title, Role.NAME)), *map(_summary, group.commands), line()]
    return (*rows, *(line(text) for text in PLACES), line("An empty line repeats the last move."))


def _summary(command: StepperCommand) -> Line:
    full, *short = command.names
    names = f"{full} ({short[0]})" if short else full
    return line(f"  {f'{names} {command.usage}':<30} ", Span(command.summary, Role.COMMENT))
