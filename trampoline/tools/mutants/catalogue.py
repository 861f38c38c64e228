"""The catalogue of mutants."""

from functools import cache

from trampoline.tools.mutants.bugs import direct, generated, lifetime, links, metadata, patching, programs
from trampoline.tools.mutants.mutant import Mutant, checked, load

AREAS = {
    "image lifetime": lifetime.MUTANTS,
    "text patching": patching.MUTANTS,
    "ftrace and direct callers": direct.MUTANTS,
    "generated code": generated.MUTANTS,
    "metadata of traced functions": metadata.MUTANTS,
    "links and limits": links.MUTANTS,
    "programs": programs.MUTANTS,
}
"""Mutants by subject."""


@cache
def catalogue() -> tuple[Mutant, ...]:
    """All mutants of the catalogue."""
    return tuple(checked([mutant for mutants in AREAS.values() for mutant in mutants], "the catalogue"))


def known(module: str | None = None) -> list[Mutant]:
    """The mutants of a file, if given, followed by the catalogue's; the file's mutant takes precedence for equal names.

    Raises what ``load`` raises.
    """
    own = [] if module is None else load(module)
    names = {mutant.name for mutant in own}
    return [*own, *(mutant for mutant in catalogue() if mutant.name not in names)]
