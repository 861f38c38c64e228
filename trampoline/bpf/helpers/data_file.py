"""The format of this folder's data files: lines of words, ``#`` comments, ``[sections]``, and releases.

``WORD@RELEASE`` holds from that release on, ``WORD@FIRST..LAST`` no longer than to the second. A file that does not
follow its format is a fault of this package, so that ValueError is raised.
"""

from collections.abc import Iterator
from importlib.resources import files

RELEASES = ("6.1", "6.12", "7.2")
"""Oldest first."""


def lines(name: str) -> Iterator[list[str]]:
    """The words of each line of a file of this folder that is not empty or a comment."""
    for line in (files(__package__) / name).read_text(encoding="utf-8").splitlines():
        if (text := line.strip()) and not text.startswith("#"):
            yield text.split()


def sections(name: str) -> dict[str, list[list[str]]]:
    """The lines of each ``[section]`` of a file of this folder."""
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


def since(word: str) -> tuple[str, range]:
    """``word@6.12`` as the word and the numbers in ``RELEASES`` that it holds for; all where none is said."""
    name, at, releases = word.partition("@")
    first, _, last = releases.partition("..")
    return name, range(RELEASES.index(first) if at else 0, RELEASES.index(last) + 1 if last else len(RELEASES))
