"""The command line: commands by name, as gdb has them, and what each one does."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emu.errors import EmuError
from trampoline.errors import TrampolineError
from trampoline.stepper import breaks, inspect, moves, scheduling
from trampoline.stepper.answer import Answer
from trampoline.stepper.session import Session
from trampoline.stepper.text import Line, Role, Span, line

_WORDS = re.compile(r"([A-Za-z][\w-]*)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its names, the full one first; what may stand behind it; what it does, in words."""

    names: tuple[str, ...]
    usage: str
    summary: str
    do: Callable[[Session, str], Answer]
    repeats: bool = False
    """Whether an empty line does it again."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that belong together."""

    title: str
    commands: tuple[Command, ...]


def _print(session: Session, rest: str) -> Answer:
    return inspect.show_value(session, rest) if rest else moves.to_phase(session, "")


def _quit(session: Session, rest: str) -> Answer:
    return Answer(leaves=True)


def _help(session: Session, rest: str) -> Answer:
    if not rest:
        return Answer(help_lines())
    command = COMMANDS.get(rest)
    if command is None:
        raise TrampolineError(f"no command {rest!r}; help shows them all")
    return Answer((_summary(command),))


GROUPS = (
    Group(
        "Forwards",
        (
            Command(("stepi", "s", "si", "step"), "[N]", "an instruction, or N", moves.step, True),
            Command(("nexti", "n", "ni", "next"), "[N]", "the same, a call being one", moves.step_over, True),
            Command(("finish", "f", "fin"), "", "until the present function has returned", moves.step_out, True),
            Command(("continue", "c"), "", "to a breakpoint, the end, a fault", moves.run, True),
            Command(("until", "u", "advance"), "PLACE", "to a place, as for break", breaks.until),
            Command(("phase",), "[NAME]", "to the next phase, or to that one; p alone too", moves.to_phase, True),
            Command(("along", "a"), "[N]", "to the end of the schedule's present step, or N", moves.along, True),
            Command(("to",), "WHAT", "to the next program, call, patch or event", moves.to, True),
        ),
    ),
    Group(
        "Backwards",
        (
            Command(("reverse-stepi", "rs", "rsi", "reverse-step"), "[N]", "an instruction, or N", moves.back, True),
            Command(
                ("reverse-nexti", "rn", "rni", "reverse-next"), "[N]", "the same, a call being one",
                moves.back_over, True,
            ),
            Command(("reverse-finish", "rf"), "", "to the call of the present function", moves.back_out, True),
            Command(("reverse-continue", "rc"), "", "to a breakpoint, or the start", moves.run_back, True),
            Command(("reverse-along", "ra"), "[N]", "back to where it begins, or N steps", moves.back_along, True),
            Command(("goto",), "POSITION", "to a position that was reached before", moves.goto),
        ),
    ),
    Group(
        "Where to stop",
        (
            Command(("break", "b", "br"), "[PLACE] [if EXPR]", "there; without PLACE here", breaks.add),
            Command(("watch",), "EXPR [BYTES]", "behind writes to memory there", breaks.watch),
            Command(("rwatch",), "EXPR [BYTES]", "behind reads", breaks.rwatch),
            Command(("awatch",), "EXPR [BYTES]", "behind both", breaks.awatch),
            Command(("delete", "d"), "[NUMBER]", "take a breakpoint away, or all", breaks.delete),
        ),
    ),
    Group(
        "Threads and CPUs",
        (
            Command(("thread", "t"), "[NUMBER]", "step that one; without NUMBER: list them", scheduling.thread),
            Command(("preempt",), "[THREAD]", "take its CPU from it", scheduling.preempt),
            Command(("wake",), "[THREAD]", "let a sleeping task go on", scheduling.wake),
            Command(("place",), "CPU", "let a task that was preempted go on there", scheduling.place),
            Command(("adopt",), "[CPU]", "let a CPU see what was written to text", scheduling.adopt),
            Command(("grace",), "KIND", "end a grace period; its callbacks are a thread", scheduling.grace),
        ),
    ),
    Group(
        "Looking and changing",
        (
            Command(("info", "i"), "WHAT", "a pane; breakpoints", inspect.info),
            Command(("backtrace", "bt", "where"), "", "the call chain", inspect.backtrace),
            Command(("print", "p"), "EXPR", "a value", _print),
            Command(("x",), "[/N[x|i]] EXPR", "N words of memory, or instructions", inspect.memory),
            Command(("set",), "WHAT = EXPR", "a register ($rax), a word (*EXPR)", inspect.change),
        ),
    ),
    Group(
        "Other",
        (
            Command(("help", "h"), "[COMMAND]", "this", _help),
            Command(("quit", "q", "exit"), "", "leave", _quit),
        ),
    ),
)  # fmt: skip
COMMANDS: Mapping[str, Command] = {
    name: command for group in GROUPS for command in group.commands for name in command.names
}
"""By every name."""
PLACES = (
    "PLACE is a symbol, *EXPR, phase NAME, program [NAME] or event [KIND].",
    "EXPR is C on 64-bit words: $rax + 8, vfs_read, *($rbp - 8), $rdi == 2.",
)


def perform(session: Session, text: str) -> Answer:
    """Do what a line of the user's says; an empty one repeats the last move. What is refused is an answer as well."""
    text = text.strip() or session.last
    if not text or text[0] == "#":
        return Answer()
    session.last = ""
    try:
        command, rest = _found(text)
        session.mark()
        answer = command.do(session, rest)
    except (TrampolineError, EmuError) as error:
        message = "; ".join(part.strip() for part in str(error).splitlines() if part.strip())
        return Answer((line(Span(message, Role.WARNING)),), is_error=True)
    if command.repeats:
        session.last = text
    return answer


def _found(text: str) -> tuple[Command, str]:
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


def _summary(command: Command) -> Line:
    full, *short = command.names
    names = f"{full} ({short[0]})" if short else full
    return line(f"  {f'{names} {command.usage}':<30} ", Span(command.summary, Role.COMMENT))
