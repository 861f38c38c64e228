"""A guest routine: text for the assembler, and the data needed to place it in the kernel's text."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JumpEntry:
    """One use of a static key (``struct jump_entry``): a nop5 at label ``site``, a jmp to ``target`` while it is on."""

    key: str
    site: str
    target: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """Instructions of an inline function: ``text`` is inline, ``cold`` goes after the function's last ret."""

    text: str
    cold: str = ""


@dataclass(frozen=True, slots=True)
class Routine:
    """A function of the kernel as assembly text, without its own label, endbr64 and padding.

    ``symbols``: names in the text other than its own labels and the structures' fields. Labels begin with the routine's
    name, so that several texts may share one namespace. ``host_call``: there is no text; the kernel's builder makes a
    host call of this name.
    """

    name: str
    text: str = ""
    symbols: tuple[str, ...] = ()
    jump_entries: tuple[JumpEntry, ...] = ()
    host_call: bool = False
    stack: Mapping[int, str] = field(default_factory=dict, hash=False)
    """Names of its stack words, in the form of ``StackNames.fixed``."""


def body(*parts: str) -> str:
    """Join parts of a text, without empty lines."""
    return "".join(f"{line}\n" for part in parts for line in part.splitlines() if line.strip())


def ret(return_thunk: bool) -> str:
    """Return instruction; with CONFIG_RETHUNK, as built, through ``__x86_return_thunk``."""
    return "    jmp __x86_return_thunk" if return_thunk else "    ret"


def symbols_of(text: str, among: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a text refers to, in the given order."""
    words = set(text.replace(",", " ").replace("]", " ").replace("[", " ").split())
    return tuple(name for name in among if name in words)
