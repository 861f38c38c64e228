"""Baseline file: a header with phases and code, then a line ``NAME = N`` for each count."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.icount.counted_path import CountedPath, PathPiece, PhaseCode, check_name
from trampoline.tools.icount.errors import BaselineError
from trampoline.tools.icount.limits import Limits

FORMAT = 1
TITLE = f"# tramplab counts, format {FORMAT}"
_TITLE = re.compile(r"# tramplab counts, format (\d+)")
_MADE_BY = "# made by: "
_CODE = re.compile(r"# code ([0-9a-f]+) (.+)")
_PATH = re.compile(r"# path (.+)")
_INSIDE = "#   "
_PHASE = re.compile(r"([a-z]\w*)=(\d+):([0-9a-f]+(?:\+[0-9a-f]+)*)?")
_COUNT = re.compile(r"(.*\S) = (\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """One path of a baseline.

    ``instructions``: the number on its count line, which is line ``line`` (from 1) of the file. ``path``: its data in
    the header, None without any. ``limits``: as the header states them.
    """

    instructions: int
    line: int
    path: CountedPath | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline: its paths by name, and the command that made it."""

    entries: Mapping[str, BaselineEntry]
    made_by: str = ""

    @classmethod
    def read(cls, file: File) -> "Baseline":
        """Read a file. Raises BaselineError if it is missing, damaged or no baseline."""
        try:
            text = file.read_bytes().decode()
        except FileNotFoundError:
            raise BaselineError(file, "no such baseline") from None
        except UnicodeDecodeError:
            raise BaselineError(file, "not a baseline of counts") from None
        except OSError as error:
            raise BaselineError(file, error.strerror or str(error)) from error
        return cls.parse(text, file)

    @classmethod
    def parse(cls, text: str, file: File) -> "Baseline":
        """Parse the text of a file. Raises BaselineError with the line number."""
        return _Reader(file).read(text)

    def conditions(self, name: str) -> set[str]:
        """The values of a condition in the paths."""
        return {
            entry.path.conditions[name]
            for entry in self.entries.values()
            if entry.path is not None and name in entry.path.conditions
        }


def format_baseline(paths: Mapping[str, tuple[CountedPath, Limits]], made_by: str) -> str:
    """The text of a baseline. Raises TrampolineError for a name that does not fit on a line."""
    pieces: dict[str, PathPiece] = {}
    header: list[str] = []
    for name in sorted(paths):
        path, limits = paths[name]
        values = {**path.conditions, "unbalanced": str(path.unbalanced_returns)}
        if limits.is_stated:
            values |= {"soft": str(limits.soft), "hard": str(limits.hard)}
        header += [f"# path {check_name(name)}", _INSIDE + " ".join(f"{key}={value}" for key, value in values.items())]
        phases = []
        for phase, code in path.phases.items():
            for piece in code.pieces:
                known = pieces.setdefault(piece.digest, piece)
                if known != piece:
                    raise TrampolineError(f"two pieces of code have the digest {piece.digest}")
            phases.append(f"{phase}={code.instructions}:{'+'.join(piece.digest for piece in code.pieces)}")
        header.append(f"{_INSIDE}phases {' '.join(phases)}")
    listing: list[str] = []
    for piece in sorted(pieces.values(), key=lambda piece: (piece.name, piece.lines)):
        listing += [f"# code {piece.digest} {piece.name}", *(_INSIDE + line for line in piece.lines)]
    counts = [f"{name} = {paths[name][0].instructions}" for name in sorted(paths)]
    return "\n".join([TITLE, _MADE_BY + made_by, "#", *listing, "#", *header, "", *counts]) + "\n"


class _Reader:
    """Reads one file line by line."""

    def __init__(self, file: File) -> None:
        self._file, self._number = file, 0
        self._made_by = ""
        self._code: dict[str, PathPiece] = {}
        self._paths: dict[str, tuple[CountedPath, Limits]] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def read(self, text: str) -> Baseline:
        lines = text.splitlines()
        title = _TITLE.fullmatch(lines[0]) if lines else None
        if title is None:
            raise BaselineError(self._file, f"not a baseline of counts: its first line is not {TITLE!r}")
        if int(title[1]) != FORMAT:
            raise BaselineError(self._file, f"format {title[1]}; this version reads {FORMAT}", 1)
        blocks: list[tuple[int, str, list[str]]] = []
        inside: list[str] | None = None
        for self._number, line in enumerate(lines[1:], 2):
            if line.startswith(_INSIDE):
                if inside is None:
                    raise self._damaged("a line that belongs to no path and no code")
                inside.append(line[len(_INSIDE) :])
                continue
            inside = None
            if line.startswith(("# code ", "# path ")):
                inside = []
                blocks.append((self._number, line, inside))
            elif line.startswith(_MADE_BY):
                self._made_by = line.removeprefix(_MADE_BY)
            elif line and not line.startswith("#"):
                self._count(line)
        # All code first: a path may precede the code that it refers to.
        for self._number, line, rows in sorted(blocks, key=lambda block: not block[1].startswith("# code ")):
            self._block(line, rows)
        entries = {
            name: BaselineEntry(count, number, *self._paths.get(name, (None, Limits())))
            for name, (count, number) in self._counts.items()
        }
        return Baseline(entries, self._made_by)

    def _damaged(self, what: str) -> BaselineError:
        return BaselineError(self._file, f"damaged: {what}", self._number)

    def _count(self, line: str) -> None:
        match = _COUNT.fullmatch(line)
        if match is None:
            raise self._damaged(f"{line[:60]!r} is not NAME = N")
        name = match[1]
        if name in self._counts:
            raise self._damaged(f"{name} already has a count, in line {self._counts[name][1]}")
        self._counts[name] = int(match[2]), self._number

    def _block(self, line: str, rows: list[str]) -> None:
        if match := _CODE.fullmatch(line):
            self._code[match[1]] = PathPiece(match[2], tuple(rows))
        elif match := _PATH.fullmatch(line):
            if match[1] in self._paths:
                raise self._damaged(f"path {match[1]} is repeated")
            self._paths[match[1]] = self._path(rows)
        else:
            raise self._damaged(f"{line[:60]!r} is neither code nor a path")

    def _path(self, rows: Iterable[str]) -> tuple[CountedPath, Limits]:
        values: dict[str, str] = {}
        phases: dict[str, PhaseCode] = {}
        for row in rows:
            if row.startswith("phases"):
                phases |= dict(self._phase(word) for word in row.split()[1:])
                continue
            for word in row.split():
                key, sign, value = word.partition("=")
                if not (key and sign and value):
                    raise self._damaged(f"{word!r} is not KEY=VALUE")
                values[key] = value
        unbalanced = values.pop("unbalanced", "0")
        if not unbalanced.isdecimal():
            raise self._damaged(f"unbalanced={unbalanced}")
        try:
            limits = Limits.parse(values.pop("soft", None), values.pop("hard", None))
        except TrampolineError as error:
            raise self._damaged(str(error)) from error
        total = sum(phase.instructions for phase in phases.values())
        return CountedPath(total, int(unbalanced), phases, values), limits

    def _phase(self, word: str) -> tuple[str, PhaseCode]:
        match = _PHASE.fullmatch(word)
        if match is None:
            raise self._damaged(f"{word!r} is not PHASE=N:CODE")
        digests = match[3].split("+") if match[3] else []
        for digest in digests:
            if digest not in self._code:
                raise self._damaged(f"no code {digest}")
        return match[1], PhaseCode(int(match[2]), tuple(self._code[digest] for digest in digests))
