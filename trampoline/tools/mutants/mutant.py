"""Mutant: a bug with its patches; mutants come from the catalogue or from a user's file."""

import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trampoline.tools.mutants.patch import MutantError, Patch, applied

VARIABLE = "MUTANTS"
"""Name of the list that a file of mutants must define."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A reintroduced bug. ``bug``: its commit or kernel function; ``mechanism``: its effect, in one sentence."""

    name: str
    bug: str
    mechanism: str
    patches: Patch | Sequence[Patch]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the patches within the block. Raises MutantError if one does not fit."""
        patches = self.patches if isinstance(self.patches, Sequence) else (self.patches,)
        if not patches:
            raise MutantError("it has no patch")
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(applied(patch))
            yield


def mutant(name: str, *, bug: str = "", mechanism: str = "") -> Callable[[Callable[[], Any]], Mutant]:
    """Decorator that makes a mutant of a function that patches: a generator with one ``yield`` between applying and
    reverting the bug, or any other ``Patch``. The default ``mechanism`` is the first line of its docstring.
    """

    def decorate(function: Callable[[], Any]) -> Mutant:
        said = (function.__doc__ or "").strip().splitlines()
        return Mutant(name, bug, mechanism or (said[0] if said else ""), function)

    return decorate


def load(path: str) -> list[Mutant]:
    """The mutants of a Python file: its ``MUTANTS``. Raises MutantError for an invalid file, OSError if it cannot be
    read. The file is run as a module of its own, under a name that cannot be imported.
    """
    Path(path).read_bytes()
    try:
        found = runpy.run_path(path, run_name="tramplab_mutants")
    except Exception as error:
        raise MutantError(f"{path}: {type(error).__name__}: {error}") from error
    except SystemExit as error:
        raise MutantError(f"{path} ended the program: {error}") from error
    if VARIABLE not in found:
        raise MutantError(f"{path} defines no {VARIABLE}")
    listed = found[VARIABLE]
    if not isinstance(listed, Iterable) or isinstance(listed, str | bytes):
        raise MutantError(f"{path}: {VARIABLE} is not a list")
    return checked(listed, path)


def checked(listed: Iterable[object], source: str) -> list[Mutant]:
    """Check the mutants of ``source`` for type, and for valid and unique names. Raises MutantError."""
    mutants: list[Mutant] = []
    names: set[str] = set()
    for number, one in enumerate(listed):
        if not isinstance(one, Mutant):
            raise MutantError(f"{source}: {VARIABLE}[{number}] is {one!r}, not a Mutant")
        if not isinstance(one.name, str) or not one.name or any(letter.isspace() for letter in one.name):
            raise MutantError(f"{source}: {one.name!r} is not a valid mutant name")
        if one.name in names:
            raise MutantError(f"{source}: two mutants have the name {one.name!r}")
        names.add(one.name)
        mutants.append(one)
    return mutants


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """The mutants with these names; without names, all. Raises MutantError for an unknown name."""
    known = {one.name: one for one in mutants}
    for name in names:
        if name not in known:
            raise MutantError(f"no mutant {name!r}; tramp mutants --list shows them all")
    return [known[name] for name in dict.fromkeys(names)] if names else list(mutants)
