"""The mutants that tramplab has."""

from functools import cache

from trampoline.mutants.bugs import direct, generated, lifetime, links, metadata, patching, programs
from trampoline.mutants.mutant import Mutant, checked

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
