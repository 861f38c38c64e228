"""The mutants that tramplab has."""

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
"""By what they concern."""


@cache
def catalogue() -> tuple[Mutant, ...]:
    """All of them."""
    return tuple(checked([mutant for mutants in AREAS.values() for mutant in mutants], "the catalogue"))


def known(module: str | None = None) -> list[Mutant]:
    """The mutants of a file, where one is given, and behind them the catalogue's; a name that both have is the file's.

    What ``load`` raises.
    """
    own = [] if module is None else load(module)
    names = {mutant.name for mutant in own}
    return [*own, *(mutant for mutant in catalogue() if mutant.name not in names)]
