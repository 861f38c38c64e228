"""What a guest routine is: text for the assembler, and what else must be known to place it in the kernel's text."""

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
    """Instructions of an inline function: ``text`` stands in line, ``cold`` behind the function's last ret."""

    text: str
    cold: str = ""


@dataclass(frozen=True, slots=True)
class Routine:
    """A function of the kernel as assembly text, without its own label, endbr64 and padding.

    ``symbols``: what the text refers to beside its own labels and the structures' fields. Labels begin with the
    routine's name, so that several texts may share one namespace. ``host_call``: there is no text; whoever builds the
    kernel gives the name to a host call.
    """

    name: str
    text: str = ""
    symbols: tuple[str, ...] = ()
    jump_entries: tuple[JumpEntry, ...] = ()
    host_call: bool = False
    stack: Mapping[int, str] = field(default_factory=dict, hash=False)
    """What the words of its frame are called, as ``StackNames.fixed`` has it."""


def body(*parts: str) -> str:
    """A text from its parts, without empty lines."""
    return "".join(f"{line}\n" for part in parts for line in part.splitlines() if line.strip())


def ret(return_thunk: bool) -> str:
    """How a function returns: with CONFIG_RETHUNK, as built, through ``__x86_return_thunk``."""
    return "    jmp __x86_return_thunk" if return_thunk else "    ret"


def symbols_of(text: str, among: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names that a text refers to, in the order given."""
    words = set(text.replace(",", " ").replace("]", " ").replace("[", " ").split())
    return tuple(name for name in among if name in words)
