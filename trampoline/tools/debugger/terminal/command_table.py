"""The command line: commands by name, as gdb has them, and what each one does."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emu.errors import EmuError
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal import (
    breakpoint_commands,
    inspection_commands,
    motion_commands,
    schedule_commands,
)
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line

_WORDS = re.compile(r"([A-Za-z][\w-]*)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepperCommand:
    """A command: its names, the full one first; what may stand behind it; what it does, in words."""

    names: tuple[str, ...]
    usage: str
    summary: str
    do: Callable[[StepperSession, str], CommandResult]
    repeats: bool = False
    """Whether an empty line does it again."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that belong together."""

    title: str
    commands: tuple[StepperCommand, ...]


def _print(session: StepperSession, rest: str) -> CommandResult:
    return inspection_commands.show_value(session, rest) if rest else motion_commands.to_phase(session, "")


def _quit(session: StepperSession, rest: str) -> CommandResult:
    return CommandResult(leaves=True)


def _help(session: StepperSession, rest: str) -> CommandResult:
    if not rest:
        return CommandResult(help_lines())
    command = COMMANDS.get(rest)
    if command is None:
        raise TrampolineError(f"no command {rest!r}; help shows them all")
    return CommandResult((_summary(command),))


GROUPS = (
    Group(
        "Forwards",
        (
            StepperCommand(("stepi", "s", "si", "step"), "[N]", "an instruction, or N", motion_commands.step, True),
            StepperCommand(
                ("nexti", "n", "ni", "next"), "[N]", "the same, a call being one", motion_commands.step_over, True
            ),
            StepperCommand(
                ("finish", "f", "fin"), "", "until the present function has returned", motion_commands.step_out, True
            ),
            StepperCommand(("continue", "c"), "", "to a breakpoint, the end, a fault", motion_commands.run, True),
            StepperCommand(("until", "u", "advance"), "PLACE", "to a place, as for break", breakpoint_commands.until),
            StepperCommand(
                ("phase",), "[NAME]", "to the next phase, or to that one; p alone too", motion_commands.to_phase, True
            ),
            StepperCommand(
                ("along", "a"), "[N]", "to the end of the schedule's present step, or N", motion_commands.along, True
            ),
            StepperCommand(("to",), "WHAT", "to the next program, call, patch or event", motion_commands.to, True),
        ),
    ),
    Group(
        "Backwards",
        (
            StepperCommand(
                ("reverse-stepi", "rs", "rsi", "reverse-step"),
                "[N]",
                "an instruction, or N",
                motion_commands.back,
                True,
            ),
            StepperCommand(
                ("reverse-nexti", "rn", "rni", "reverse-next"),
                "[N]",
                "the same, a call being one",
                motion_commands.back_over,
                True,
            ),
            StepperCommand(
                ("reverse-finish", "rf"), "", "to the call of the present function", motion_commands.back_out, True
            ),
            StepperCommand(
                ("reverse-continue", "rc"), "", "to a breakpoint, or the start", motion_commands.run_back, True
            ),
            StepperCommand(
                ("reverse-along", "ra"), "[N]", "back to where it begins, or N steps", motion_commands.back_along, True
            ),
            StepperCommand(("goto",), "POSITION", "to a position that was reached before", motion_commands.goto),
        ),
    ),
    Group(
        "Where to stop",
        (
            StepperCommand(
                ("break", "b", "br"), "[PLACE] [if EXPR]", "there; without PLACE here", breakpoint_commands.add
            ),
            StepperCommand(("watch",), "EXPR [BYTES]", "behind writes to memory there", breakpoint_commands.watch),
            StepperCommand(("rwatch",), "EXPR [BYTES]", "behind reads", breakpoint_commands.rwatch),
            StepperCommand(("awatch",), "EXPR [BYTES]", "behind both", breakpoint_commands.awatch),
            StepperCommand(("delete", "d"), "[NUMBER]", "take a breakpoint away, or all", breakpoint_commands.delete),
        ),
    ),
    Group(
        "Threads and CPUs",
        (
            StepperCommand(
                ("thread", "t"), "[NUMBER]", "step that one; without NUMBER: list them", schedule_commands.thread
            ),
            StepperCommand(("preempt",), "[THREAD]", "take its CPU from it", schedule_commands.preempt),
            StepperCommand(("wake",), "[THREAD]", "let a sleeping task go on", schedule_commands.wake),
            StepperCommand(("place",), "CPU", "let a task that was preempted go on there", schedule_commands.place),
            StepperCommand(("adopt",), "[CPU]", "let a CPU see what was written to text", schedule_commands.adopt),
            StepperCommand(
                ("grace",), "KIND", "end a grace period; its callbacks are a thread", schedule_commands.grace
            ),
        ),
    ),
    Group(
        "Looking and changing",
        (
            StepperCommand(("info", "i"), "WHAT", "a pane; breakpoints", inspection_commands.info),
            StepperCommand(("backtrace", "bt", "where"), "", "the call chain", inspection_commands.backtrace),
            StepperCommand(("print", "p"), "EXPR", "a value", _print),
            StepperCommand(("x",), "[/N[x|i]] EXPR", "N words of memory, or instructions", inspection_commands.memory),
            StepperCommand(("set",), "WHAT = EXPR", "a register ($rax), a word (*EXPR)", inspection_commands.change),
        ),
    ),
    Group(
        "Other",
        (
            StepperCommand(("help", "h"), "[COMMAND]", "this", _help),
            StepperCommand(("quit", "q", "exit"), "", "leave", _quit),
        ),
    ),
)
COMMANDS: Mapping[str, StepperCommand] = {
    name: command for group in GROUPS for command in group.commands for name in command.names
}
"""By every name."""
PLACES = (
    "PLACE is a symbol, *EXPR, phase NAME, program [NAME] or event [KIND].",
    "EXPR is C on 64-bit words: $rax + 8, vfs_read, *($rbp - 8), $rdi == 2.",
)


def perform(session: StepperSession, text: str) -> CommandResult:
    """Do what a line of the user's says; an empty one repeats the last move. What is refused is an answer as well."""
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
    """All commands, by group."""
    rows = list[Line]()
    for group in GROUPS:
        rows += [line(Span(group.title, Role.NAME)), *map(_summary, group.commands), line()]
    return (*rows, *(line(text) for text in PLACES), line("An empty line repeats the last move."))


def _summary(command: StepperCommand) -> Line:
    full, *short = command.names
    names = f"{full} ({short[0]})" if short else full
    return line(f"  {f'{names} {command.usage}':<30} ", Span(command.summary, Role.COMMENT))
