"""Lists of functions that the kernel's sources keep, by release: read from this package's ``data`` folder.

A file holds names separated by white space; ``#`` begins a comment. ``NAME@RELEASE`` is in the list from that release
on, ``NAME@FIRST..LAST`` no longer than to the second. ``*`` in a name stands for any characters.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

RELEASES = ("6.1", "6.12", "7.2")
"""Oldest first."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of functions; ``name in names`` asks patterns too."""

    exact: frozenset[str]
    patterns: tuple[str, ...] = field(default=())

    def __contains__(self, name: str) -> bool:
        return name in self.exact or any(fnmatchcase(name, pattern) for pattern in self.patterns)


@cache
def names(list_name: str, release: str) -> Names:
    """The list in ``data/<list_name>.txt`` as that release has it.

    Raises ValueError for a release that is none of ``RELEASES``: a fault of the caller or of the file.
    """
    if release not in RELEASES:
        raise ValueError(f"no release {release}; there are {', '.join(RELEASES)}")
    text = (files(__package__) / "data" / f"{list_name}.txt").read_text(encoding="utf-8")
    found = set()
    position = RELEASES.index(release)
    for line in text.splitlines():
        for word in line.partition("#")[0].split():
            name, at, releases = word.partition("@")
            first, _, last = releases.partition("..")
            since = RELEASES.index(first) if at else 0
            until = RELEASES.index(last) if last else len(RELEASES)
            if since <= position <= until:
                found.add(name)
    patterns = tuple(sorted(name for name in found if "*" in name))
    return Names(frozenset(found.difference(patterns)), patterns)
