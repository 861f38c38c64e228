"""What a mutant is, and where mutants come from: this project's catalogue, or a file of somebody's own."""

import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trampoline.tools.mutants.patch import MutantError, Patch, applied

VARIABLE = "MUTANTS"
"""What a file of mutants must define."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug put back. ``bug``: which one it was; ``mechanism``: how it goes wrong, in a sentence."""

    name: str
    bug: str
    mechanism: str
    patches: Patch | Sequence[Patch]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block the bug is there. MutantError where a patch does not fit."""
        patches = self.patches if isinstance(self.patches, Sequence) else (self.patches,)
        if not patches:
            raise MutantError("there is no patch")
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(applied(patch))
            yield


def mutant(name: str, *, bug: str = "", mechanism: str = "") -> Callable[[Callable[[], Any]], Mutant]:
    """Make a mutant of a function that patches: a generator with one ``yield``, between putting the bug in and taking
    it out, or any other ``Patch``. Without ``mechanism`` the first line of its docstring says it.
    """

    def decorate(function: Callable[[], Any]) -> Mutant:
        said = (function.__doc__ or "").strip().splitlines()
        return Mutant(name, bug, mechanism or (said[0] if said else ""), function)

    return decorate


def load(path: str) -> list[Mutant]:
    """The mutants of a Python file: its ``MUTANTS``. MutantError for a file that is none, OSError where it can't be
    read. The file is run as a module of its own, under no name that could be imported.
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
        raise MutantError(f"{path}: {VARIABLE} is no list")
    return checked(listed, path)


def checked(listed: Iterable[object], source: str) -> list[Mutant]:
    """Mutants with names of their own. MutantError."""
    mutants: list[Mutant] = []
    names: set[str] = set()
    for number, one in enumerate(listed):
        if not isinstance(one, Mutant):
            raise MutantError(f"{source}: {VARIABLE}[{number}] is {one!r}, no Mutant")
        if not isinstance(one.name, str) or not one.name or any(letter.isspace() for letter in one.name):
            raise MutantError(f"{source}: {one.name!r} is no name of a mutant")
        if one.name in names:
            raise MutantError(f"{source}: there are two mutants {one.name!r}")
        names.add(one.name)
        mutants.append(one)
    return mutants


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Those with these names, all without names. MutantError for a name that there is not."""
    known = {one.name: one for one in mutants}
    for name in names:
        if name not in known:
            raise MutantError(f"no mutant {name!r}; tramp mutants --list says which there are")
    return [known[name] for name in dict.fromkeys(names)] if names else list(mutants)
