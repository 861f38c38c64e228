"""Keys of the screen, after the single-key mode of gdb's TUI (Ctrl-X s)."""

from dataclasses import dataclass

from trampoline.tools.debugger.terminal.command_table import help_lines
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line


@dataclass(frozen=True, slots=True)
class Key:
    """A key, or a sequence of two, in Textual's names, with its command or its screen action (``@``)."""

    keys: tuple[str, ...]
    does: str
    summary: str
    shown: str = ""


KEYS = (
    Key(("s",), "stepi", "an instruction"),
    Key(("n",), "nexti", "the same, a call being one"),
    Key(("f",), "finish", "until the present function has returned"),
    Key(("c",), "continue", "to a breakpoint, the end, a fault"),
    Key(("p",), "phase", "to the next phase"),
    Key(("u",), "@until", "to the cursor; without one, to a place that you type"),
    Key(("r", "s"), "reverse-stepi", "back an instruction", "rs"),
    Key(("r", "n"), "reverse-nexti", "back over a call", "rn"),
    Key(("r", "f"), "reverse-finish", "back to the call of the present function", "rf"),
    Key(("r", "c"), "reverse-continue", "back to a breakpoint, or the start", "rc"),
    Key(("a",), "along", "to the end of the schedule's present step"),
    Key(("r", "a"), "reverse-along", "back to where it begins", "ra"),
    Key(("enter",), "", "the last move again", "Enter"),
    Key(("b",), "@break", "a breakpoint at the cursor, or none; without a cursor, here"),
    Key(("t",), "@thread", "the next thread"),
    Key(("colon",), "@command", "the command line; any other letter begins it as well", ":"),
    Key(("ctrl+x", "o"), "@other", "the next pane, as Tab", "Ctrl-X o"),
    Key(("tab",), "@other", ""),
    Key(("shift+tab",), "@other back", ""),
    Key(("1",), "@pane 1", "code; 2 stack, 3 registers, 4 chain, 5 vCPUs, 6 events, 7 schedule", "1"),
    *(Key((str(number),), f"@pane {number}", "") for number in range(2, 8)),
    Key(("escape",), "@cancel", "leave the command line, drop the cursor", "Esc"),
    Key(("ctrl+c",), "@interrupt", "stop what runs", "Ctrl-C"),
    Key(("ctrl+l",), "@repaint", "paint the screen again", "Ctrl-L"),
    Key(("ctrl+z",), "@suspend", "back to the shell; fg returns", "Ctrl-Z"),
    Key(("question_mark",), "@help", "this", "?, F1"),
    Key(("f1",), "@help", ""),
    Key(("q",), "@quit", "leave"),
)
BY_KEYS = {key.keys: key for key in KEYS}
PREFIXES = frozenset(key.keys[0] for key in KEYS if len(key.keys) > 1)
"""First keys of two-key sequences."""
MARKS = (
    ("=>", "the instruction that is executed next; the present thread"),
    ("b", "a breakpoint"),
    (">", "the cursor; the top of the stack"),
    ("*", "changed by the last command"),
)
ALWAYS = frozenset({"ctrl+c", "escape", "tab", "shift+tab"})
"""Keys that the screen handles in the command line as well."""
HINTS = line("s step n over f out c run p phase rs rn rf rc back b break : command ? help")
SCHEDULE_HINTS = line("s step a along rs ra back n over f out c run b break : command ? help")
"""Contents of the bottom line. The schedule's hints leave out keys that depart from the schedule."""


def shown(key: str) -> str:
    """Readable name of a key."""
    return {"ctrl+x": "Ctrl-X", "ctrl+c": "Ctrl-C", "question_mark": "?", "colon": ":"}.get(key, key)


def key_lines() -> tuple[Line, ...]:
    """The help screen: keys, then commands."""
    rows = [line(Span("Keys", Role.NAME))]
    for key in KEYS:
        if key.summary:
            rows.append(line(f"  {key.shown or key.keys[0]:<10} ", Span(key.summary, Role.COMMENT)))
    rows += [
        line("  arrows     ", Span("move the cursor in the code, the text in other panes", Role.COMMENT)),
        line(),
        line(Span("On the screen", Role.NAME)),
        *(line(f"  {mark:<10} ", Span(text, Role.COMMENT)) for mark, text in MARKS),
        line(),
        line(Span("Commands", Role.NAME), ", on the command line"),
    ]
    return (*rows, *help_lines())
