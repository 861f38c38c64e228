"""The phases of a trampoline: what its instructions are there for, and for which phase its callees work."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from emu.kernel.routines.routine import Routine
from trampoline.bpf.errors import TrampolineError

PHASES = ("entry", "save", "lookup", "enter", "program", "exit", "origin", "restore", "leave")
"""The words that `.phase` takes in the text of a trampoline, in the order in which a call comes through them."""

PHASE_COLORS = MappingProxyType(
    {
        "entry": "\x1b[34m",
        "save": "\x1b[36m",
        "lookup": "\x1b[33m",
        "enter": "\x1b[35m",
        "program": "\x1b[32m",
        "exit": "\x1b[35m",
        "origin": "\x1b[31m",
        "restore": "\x1b[36m",
        "leave": "\x1b[34m",
    }
)
"""Escape sequences for listings on a terminal."""

_CALLEES = {
    "__bpf_prog_enter": "enter",
    "__bpf_prog_exit": "exit",
    "__bpf_tramp_enter": "origin",
    "__bpf_tramp_exit": "origin",
    "update_prog_stats": "exit",
    "migrate_disable": "enter",
    "migrate_enable": "exit",
}
"""By the beginning of a routine's name."""
_KNOWN = {*PHASES, "none"}
_DIRECTIVE = re.compile(r"\.phase[ \t]+([^\s;#]*)")


def check_phase(name: str) -> str:
    """`name`, which is one of PHASES. Raises TrampolineError for any other."""
    if name not in PHASES:
        raise TrampolineError(f"no phase {name!r}; there are {', '.join(PHASES)}")
    return name


def check_phases(text: str, name: str) -> str:
    """`text`, the assembly of `name`, whose `.phase` directives all name one of PHASES, or `none`.

    Raises TrampolineError with the line of one that does not.
    """
    for found in _DIRECTIVE.finditer(text):
        if found[1] not in _KNOWN:
            before = text[: found.start()]
            if not set(";#") & set(before[before.rfind("\n") + 1 :]):
                line = before.count("\n") + 1
                known = ", ".join(PHASES)
                raise TrampolineError(f"{name}, line {line}: no phase {found[1]!r}; there are {known}, none")
    return text


def checked_routines(routines: Iterable[Routine]) -> Iterable[Routine]:
    """The routines of a trampoline. Raises TrampolineError as `check_phases` does."""
    for routine in routines:
        check_phases(routine.text, routine.name)
        yield routine


def with_phases(routines: Mapping[str, Routine]) -> dict[str, Routine]:
    """The routines, each with the phase that its instructions count for."""
    marked = {}
    for name, routine in routines.items():
        phase = next((phase for prefix, phase in _CALLEES.items() if name.startswith(prefix)), None)
        marked[name] = replace(routine, text=f".phase {phase}\n{routine.text}") if phase else routine
    return marked
