"""Checked reading of recordings: JSON lines, and objects whose complaints name file, line and field."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from trampoline.bpf.errors import GoldenError
from trampoline.releases import release, release_names
from trampoline.releases.kernel_release import KernelRelease

_T = TypeVar("_T")


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of every line of a file, gzipped or not. Raises GoldenError where it is damaged."""
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
    """What is made of every line of a file, given its object and its place. Raises GoldenError where there is none."""
    number = 0
    for number, record in records(path):
        yield make(record, f"{path}:{number}")
    if not number:
        raise GoldenError(f"{path}: no case in it")


class Fields:
    """Checked access to one JSON object; every complaint names the place."""

    def __init__(self, record: Any, where: str) -> None:
        if not isinstance(record, dict):
            raise GoldenError(f"{where}: an object is wanted, not {record!r}")
        self._record, self.where = record, where

    def get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """The field, which must be there and of this type."""
        if name not in self._record:
            raise GoldenError(f"{self.where}: {name!r} is missing")
        value = self._record[name]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is int)
        if wrong:
            raise GoldenError(f"{self.where}: {name!r} is {value!r}")
        return value

    def maybe(self, name: str, kind: type) -> Any:
        """None where the field is missing or null."""
        return None if self._record.get(name) is None else self.get(name, kind)

    def text(self, name: str) -> str:
        """A string."""
        return str(self.get(name, str))

    def number(self, name: str) -> int:
        """A number."""
        return int(self.get(name, int))

    def address(self, name: str) -> int:
        """An address in hexadecimal."""
        return self._hex(name, self.get(name, str))

    def maybe_address(self, name: str) -> int | None:
        """An address, None where the field is missing or null."""
        value = self.maybe(name, str)
        return None if value is None else self._hex(name, value)

    def code(self, name: str) -> bytes:
        """Bytes in hexadecimal; none where the field is missing or null."""
        try:
            return bytes.fromhex(self.maybe(name, str) or "")
        except ValueError:
            raise GoldenError(f"{self.where}: {name!r} is not hexadecimal") from None

    def hexes(self, name: str) -> tuple[int, ...]:
        """A list of hexadecimal numbers."""
        return tuple(self._hex(name, value) for value in self.get(name, list))

    def objects(self, name: str) -> "list[Fields]":
        """A list of objects."""
        return [Fields(value, f"{self.where}: {name}[{i}]") for i, value in enumerate(self.get(name, list))]

    def sub(self, name: str) -> "Fields":
        """An object."""
        return Fields(self.get(name, dict), f"{self.where}: {name}")

    def _hex(self, name: str, value: Any) -> int:
        try:
            return int(value, 16)
        except (ValueError, TypeError):
            raise GoldenError(f"{self.where}: {name!r} is not a hexadecimal number: {value!r}") from None


def recorded_release(f: Fields) -> KernelRelease:
    """The release of the kernel that a record names, as ``6.12.107+deb13-amd64``. Raises GoldenError."""
    found = re.match(r"(\d+\.\d+)\.", f.text("kernel") + ".")
    if found is None or found[1] not in release_names():
        known = ", ".join(release_names())
        raise GoldenError(f"{f.where}: no release for kernel {f.text('kernel')!r}; there are {known}")
    return release(found[1])
