"""Lists from the kernel's sources, with the releases of each entry: the text files of this package.

A file contains words separated by white space; ``#`` starts a comment, a line ``[name]`` a section, in files with
sections. ``WORD@RELEASE`` is valid from that release on, ``WORD@FIRST..LAST`` up to and including the second. Releases
compare as numbers, so marks also cover releases between the named ones. ``*`` in the name of a function matches any
characters. A file with a format error is a fault of this package: ValueError.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from trampoline.bpf.kernel_version import KernelVersion

_FIRST, _LAST = KernelVersion(0, 0), KernelVersion(1 << 32, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """The releases from ``first`` to ``last``, both included; ``version in span`` ignores patch levels."""

    first: KernelVersion = _FIRST
    last: KernelVersion = _LAST

    def __contains__(self, version: KernelVersion) -> bool:
        return self.first <= version.series <= self.last


@dataclass(frozen=True, slots=True)
class Names:
    """Names of functions; ``name in names`` also matches patterns."""

    exact: frozenset[str]
    patterns: tuple[str, ...] = field(default=())

    def __contains__(self, name: str) -> bool:
        return name in self.exact or any(fnmatchcase(name, pattern) for pattern in self.patterns)


def lines(name: str) -> Iterator[list[str]]:
    """The words of each non-empty line of a file of this package: ``helpers/protos.txt``."""
    for line in (files(__package__) / name).read_text(encoding="utf-8").splitlines():
        if words := line.partition("#")[0].split():
            yield words


def sections(name: str) -> dict[str, list[list[str]]]:
    """The lines of each ``[section]`` of a file of this package."""
    found: dict[str, list[list[str]]] = {}
    current: list[list[str]] | None = None
    for words in lines(name):
        text = " ".join(words)
        if text.startswith("[") and text.endswith("]"):
            current = found.setdefault(text[1:-1], [])
        elif current is None:
            raise ValueError(f"{name}: {text!r} is in no section")
        else:
            current.append(words)
    return found


def marked(word: str) -> tuple[str, Span]:
    """``word@6.12..7.0`` as the word and its releases; all releases for a word without a mark."""
    name, at, releases = word.partition("@")
    first, to, last = releases.partition("..")
    return name, Span(
        KernelVersion.parse(first) if at else _FIRST,
        KernelVersion.parse(last) if to else _LAST,
    )


@cache
def names(list_name: str, version: KernelVersion) -> Names:
    """The functions in ``data/<list_name>.txt`` for a version."""
    found = {
        name
        for words in lines(f"data/{list_name}.txt")
        for name, span in map(marked, words)
        if version in span
    }  # fmt: skip
    patterns = tuple(sorted(name for name in found if "*" in name))
    return Names(frozenset(found.difference(patterns)), patterns)
