"""Checked reading of recordings: JSON lines, and objects whose errors name file, line and field."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from trampoline.bpf.errors import GoldenError
from trampoline.releases import release, release_names
from trampoline.releases.kernel_release import KernelRelease

_T = TypeVar("_T")


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line of a file, gzipped or not. Raises GoldenError if the file is damaged."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise GoldenError(f"{path}:{number}: not JSON: {error}") from None
                if not isinstance(record, dict):
                    raise GoldenError(f"{path}:{number}: not a recorded case")
                yield number, record
    except (OSError, EOFError, zlib.error) as error:
        raise GoldenError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_each(path: Path, make: Callable[[dict[str, Any], str], _T]) -> Iterator[_T]:
    """Objects made from every line of a file by ``make(object, place)``. Raises GoldenError if the file has no line."""
    number = 0
    for number, record in records(path):
        yield make(record, f"{path}:{number}")
    if not number:
        raise GoldenError(f"{path}: no case in it")


class Fields:
    """Checked access to one JSON object; every error names its place."""

    def __init__(self, record: Any, where: str) -> None:
        if not isinstance(record, dict):
            raise GoldenError(f"{where}: expected an object, not {record!r}")
        self._record, self.where = record, where

    def get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """The field, which must exist and have this type. Raises GoldenError, as all methods do."""
        if name not in self._record:
            raise GoldenError(f"{self.where}: {name!r} is missing")
        value = self._record[name]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is int)
        if wrong:
            raise GoldenError(f"{self.where}: {name!r} is {value!r}")
        return value

    def maybe(self, name: str, kind: type) -> Any:
        """The field; None if it is missing or null."""
        return None if self._record.get(name) is None else self.get(name, kind)

    def text(self, name: str) -> str:
        """A string field."""
        return str(self.get(name, str))

    def number(self, name: str) -> int:
        """A number field."""
        return int(self.get(name, int))

    def address(self, name: str) -> int:
        """An address field in hexadecimal."""
        return self._hex(name, self.get(name, str))

    def maybe_address(self, name: str) -> int | None:
        """An address; None if the field is missing or null."""
        value = self.maybe(name, str)
        return None if value is None else self._hex(name, value)

    def code(self, name: str) -> bytes:
        """Bytes in hexadecimal; empty if the field is missing or null."""
        try:
            return bytes.fromhex(self.maybe(name, str) or "")
        except ValueError:
            raise GoldenError(f"{self.where}: {name!r} is not hexadecimal") from None

    def hexes(self, name: str) -> tuple[int, ...]:
        """A field with a list of hexadecimal numbers."""
        return tuple(self._hex(name, value) for value in self.get(name, list))

    def objects(self, name: str) -> "list[Fields]":
        """A field with a list of objects."""
        return [Fields(value, f"{self.where}: {name}[{i}]") for i, value in enumerate(self.get(name, list))]

    def sub(self, name: str) -> "Fields":
        """A field with an object."""
        return Fields(self.get(name, dict), f"{self.where}: {name}")

    def symbols(self, name: str) -> dict[str, int]:
        """Addresses by name, from an object with names by address; for a repeated name the first address."""
        found: dict[str, int] = {}
        for address, symbol in self.get(name, dict).items():
            found.setdefault(str(symbol), self._hex(name, address))
        return found

    def make(self, kind: type[_T], **given: Any) -> _T:
        """Make a dataclass from this object. Fields that are not in ``given`` are read by name, according to their
        type: ``str``, ``int``, ``bool``, ``bytes`` (in hexadecimal), or one of the types below.
        """
        for one in fields(kind):  # type: ignore[arg-type]
            if one.name not in given:
                read = _READERS.get(one.type) or get_args(one.type)[1]
                given[one.name] = read(self, one.name)
        return kind(**given)

    def _hex(self, name: str, value: Any) -> int:
        try:
            return int(value, 16)
        except (ValueError, TypeError):
            raise GoldenError(f"{self.where}: {name!r} is not a hexadecimal number: {value!r}") from None


_READERS: dict[Any, Callable[[Fields, str], Any]] = {
    str: Fields.text,
    int: Fields.number,
    bool: lambda f, name: f.get(name, bool),
    bytes: Fields.code,
}
Address = Annotated[int, Fields.address]
MaybeAddress = Annotated[int | None, Fields.maybe_address]
Numbers = Annotated[tuple[int, ...], Fields.hexes]
"""A list of hexadecimal numbers."""
Texts = Annotated[tuple[str, ...], lambda f, name: tuple(f.get(name, list))]
Number0 = Annotated[int, lambda f, name: f.maybe(name, int) or 0]
"""A number, 0 if the field is missing or null."""
Text0 = Annotated[str, lambda f, name: f.maybe(name, str) or ""]
"""A string, empty if the field is missing or null."""
Flag0 = Annotated[bool, lambda f, name: bool(f.maybe(name, int))]
"""True if the field is a number other than 0."""


def case_fields(record: dict[str, Any], where: str) -> tuple[Fields, KernelRelease]:
    """A case's fields, whose errors name its id, and its kernel's release. Raises GoldenError for an unknown one."""
    f = Fields(record, f"{where} ({Fields(record, where).text('id')})")
    found = re.match(r"(\d+\.\d+)\.", f.text("kernel") + ".")
    if found is None or found[1] not in release_names():
        known = ", ".join(release_names())
        raise GoldenError(f"{f.where}: no release for kernel {f.text('kernel')!r}; there are {known}")
    return f, release(found[1])



def add_up(counts: Any, more: Any) -> None:
    """Add the counts of one dataclass to another of its type: numbers, lists, nested dataclasses and dictionaries."""
    for one in fields(counts):
        mine, other = getattr(counts, one.name), getattr(more, one.name)
        if is_dataclass(mine):
            add_up(mine, other)
        elif isinstance(mine, dict):
            for key, value in other.items():
                add_up(mine.setdefault(key, type(value)()), value)
        else:
            setattr(counts, one.name, mine + other)
