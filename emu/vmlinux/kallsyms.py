"""A kernel's symbols from its own tables (scripts/kallsyms.c, kernel/kallsyms.c), found in its memory by their form.

Nothing goes by release. The finder looks for what every layout shares and hardly anything else has: 256 tokens of
which the 48th to 57th are the digits, an index of their running lengths, a count followed by as many names as it
says, every name's first letter a symbol type, and after the names one marker for each 256 of them. The offsets stand
before the names (with ``kallsyms_relative_base`` between) or after the token index, and count from the base, from the
base downwards (``CONFIG_KALLSYMS_ABSOLUTE_PERCPU``) or from the entry itself: what makes the addresses rise is taken.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import add, le
from typing import Literal

from emu.vmlinux.errors import NoKallsyms, NoSymbol

__all__ = ["Kallsyms", "Layout", "Symbol"]

_DIGITS = b"".join(b"%c\0" % digit for digit in b"0123456789")
_TOKENS = 256
_MARKER_EVERY = 256
_TYPES = frozenset("AaBbCcDdGgIiNnPpRrSsTtUuVvWw")
_MAX_TOKEN_TABLE = 16 << 10
_MAX_NAME = 512
"""``KSYM_NAME_LEN``: bytes of a name with its NUL."""
_MAX_ENCODED = 64
"""Bytes that an encoded name takes on average at most (12 are usual); bounds the search for the count."""
_FEWEST = 2 * _MARKER_EVERY
"""Names at least: fewer would have one marker, which is 0, as much else is."""
_WINDOWS = (4 << 20, 32 << 20)
"""Bytes before the tokens in which the count is looked for."""
_KERNEL_MAP = 0xFFFFFFFF80000000
"""``__START_KERNEL_map``: the image is linked, and with KASLR moved, within the 2 GiB from here."""

Form = Literal["absolute per-CPU", "base-relative", "entry-relative"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the tables: guest addresses, the number of names, and the form of an offset.

    ``alignment`` is that of the tables in bytes; ``base`` is ``kallsyms_relative_base`` (runtime value), 0 if the
    offsets count from their own entries.
    """

    count: int
    names: int
    markers: int
    token_table: int
    token_index: int
    offsets: int
    offsets_first: bool
    form: Form
    alignment: int
    base: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One entry: ``type`` is the letter that nm prints (lower case: local)."""

    name: str
    address: int
    type: str


class Kallsyms:
    """The symbol table of a running or unbooted kernel, in the order of the addresses.

    ``names``, ``types`` and ``addresses`` run in parallel. A name can occur several times (static functions):
    ``[name]`` gives the first address, ``every(name)`` all.
    """

    def __init__(self, names: list[str], types: str, addresses: list[int], layout: Layout) -> None:
        self.names = names
        self.types = types
        self.addresses = addresses
        self.layout = layout

    @classmethod
    def find(cls, memory: bytes | bytearray | memoryview, address: int) -> "Kallsyms":
        """Read the tables that stand anywhere in ``memory``, whose first byte is at guest address ``address``.

        The whole tables must lie in ``memory``; the symbols' own addresses need not. Raises :class:`NoKallsyms` saying
        which part was not found.
        """
        found = _Finder(bytes(memory), address)
        tokens, table, index = found.tokens()
        number, names, starts, markers, alignment = found.names(tokens, table)
        texts = found.decode(tokens, names, starts)
        layout, addresses = found.addresses(len(texts), number, names, markers, table, index, alignment)
        return cls([text[1:] for text in texts], "".join([text[0] for text in texts]), addresses, layout)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Symbol]:
        return map(Symbol, self.names, self.addresses, self.types)

    def __contains__(self, name: object) -> bool:
        return name in self._first

    def __getitem__(self, name: str) -> int:
        try:
            return self._first[name]
        except KeyError:
            raise NoSymbol(name) from None

    def get(self, name: str) -> int | None:
        """Address of the first symbol of that name, if there is one."""
        return self._first.get(name)

    def every(self, name: str) -> tuple[int, ...]:
        """Addresses of all symbols of that name, rising; none if there is none."""
        if name not in self._first:
            return ()
        again = self._repeated.get(name)
        return again if again is not None else (self._first[name],)

    def at(self, address: int) -> tuple[str, int] | None:
        """Name and byte offset of the last kernel symbol at or before ``address``; of several names at it the first.

        None before the first and from ``_end`` on. Per-CPU offsets are no kernel addresses.
        """
        addresses, end = self.addresses, self._first.get("_end")
        if address < _KERNEL_MAP or (end is not None and address >= end):
            return None
        place = bisect_right(addresses, address) - 1
        if place < 0 or addresses[place] < _KERNEL_MAP:
            return None
        start = addresses[place]
        while place and addresses[place - 1] == start:
            place -= 1
        return self.names[place], address - start

    def describe(self, address: int) -> str:
        """``name+0x12`` for an address in the kernel, the number itself for others."""
        found = self.at(address)
        if found is None:
            return f"{address:#x}"
        return found[0] if not found[1] else f"{found[0]}+{found[1]:#x}"

    def functions(self) -> Iterator[tuple[str, int]]:
        """Names and addresses of text symbols."""
        return (
            (name, address)
            for name, address, letter in zip(self.names, self.addresses, self.types, strict=True)
            if letter in "tTwW"
        )

    @cached_property
    def _first(self) -> dict[str, int]:
        return dict(zip(reversed(self.names), reversed(self.addresses), strict=True))

    @cached_property
    def _repeated(self) -> dict[str, tuple[int, ...]]:
        several: dict[str, tuple[int, ...]] = {}
        if len(self._first) < len(self.names):
            first = self._first
            for name, address in zip(self.names, self.addresses, strict=True):
                if address != first[name] or name in several:
                    several[name] = (*several.get(name, (first[name],)), address)
        return several


class _Finder:
    """One search; positions are bytes from the start of the memory, alignment is that of guest addresses."""

    def __init__(self, memory: bytes, address: int) -> None:
        self.memory = memory
        self.address = address

    def aligned(self, position: int, alignment: int) -> int:
        return position + -(position + self.address) % alignment

    def tokens(self) -> tuple[list[str], int, int]:
        """The tokens, the position of their table and of their index.

        Digits in a row also stand in other tables: only where 256 texts end as the index says do they count.
        """
        memory, hit = self.memory, -1
        while (hit := memory.find(_DIGITS, hit + 1)) >= 0:
            table = hit
            for _ in range(ord("0")):
                table = memory.rfind(b"\0", 0, table - 1) + 1 if table > 0 else -1
                if table <= 0 or hit - table > _MAX_TOKEN_TABLE:
                    break
            else:
                if read := self.token_index(table):
                    return read[0], table, read[1]
        raise NoKallsyms("no kallsyms: no token table with its index (CONFIG_KALLSYMS, or a truncated image)")

    def token_index(self, table: int) -> tuple[list[str], int] | None:
        """The tokens and the position of the index that agrees with them."""
        memory = self.memory
        chunk = memory[table : table + _MAX_TOKEN_TABLE].split(b"\0", _TOKENS)
        if len(chunk) <= _TOKENS:
            return None
        lengths = [len(token) + 1 for token in chunk[:_TOKENS]]
        running = [0]
        for length in lengths:
            running.append(running[-1] + length)
        expected = struct.pack("<256H", *running[:_TOKENS]) if running[-1] < 1 << 16 else b"-"
        end = table + running[-1]
        for position in range(end, end + 8):
            if memory[position : position + 2 * _TOKENS] == expected:
                return [token.decode("latin-1") for token in chunk[:_TOKENS]], position
        return None

    def names(self, tokens: list[str], table: int) -> tuple[int, int, list[int], int, int]:
        """The position of the count, of the names, where each begins, the position of the markers, the alignment.

        The count stands before the names; every u32 before the tokens that could be one is tried.
        """
        typed = [token[:1] in _TYPES for token in tokens]
        last = table
        for window in _WINDOWS:
            first = self.aligned(max(0, table - window), 4)
            if found := self.names_in(first, last, table, typed):
                return found
            last = first
        raise NoKallsyms("no kallsyms: the tokens are there, the names and their markers are not")

    def names_in(
        self, first: int, last: int, table: int, typed: list[bool]
    ) -> tuple[int, int, list[int], int, int] | None:
        """The result of ``names`` if the count is stored from ``first`` up to ``last``."""
        words = memoryview(self.memory)[first : first + ((last - first) & ~3)].cast("I")
        room = table - first
        for place, count in enumerate(words):
            if count > room or count < _FEWEST or not 2 * count <= room - 4 * place <= _MAX_ENCODED * count + _MAX_NAME:
                continue
            after = first + 4 * place + 4
            for alignment in (8, 4):
                names = self.aligned(after, alignment)
                if self.aligned(after - 4, alignment) != after - 4 or any(self.memory[after:names]):
                    continue
                if starts := self.walk(names, count, table, typed):
                    for also in (alignment, 12 - alignment):
                        markers = self.aligned(starts[-1], also)
                        if self.marked(markers, names, starts):
                            return after - 4, names, starts, markers, also
        return None

    def walk(self, names: int, count: int, end: int, typed: list[bool]) -> list[int] | None:
        """Offsets of the names' starts and of the last one's end; None if these are no names."""
        memory, position = self.memory, names
        starts: list[int] = []
        append = starts.append
        for _ in range(count):
            if position >= end:
                return None
            append(position)
            length = memory[position]
            position += 1
            if length & 0x80:
                length = length & 0x7F | memory[position] << 7
                position += 1
            if not length or not typed[memory[position]]:
                return None
            position += length
        if position > end:
            return None
        append(position)
        return starts

    def marked(self, markers: int, names: int, starts: list[int]) -> bool:
        """Each 256th name's offset stands at ``markers``."""
        marks = [start - names for start in islice(starts, 0, len(starts) - 1, _MARKER_EVERY)]
        return self.memory[markers : markers + 4 * len(marks)] == struct.pack(f"<{len(marks)}I", *marks)

    def decode(self, tokens: list[str], names: int, starts: list[int]) -> list[str]:
        """Every name with its type letter before it."""
        memory = self.memory
        pieces = list(map(tokens.__getitem__, memory[names : starts[-1]]))
        for start in islice(starts, len(starts) - 1):
            pieces[start - names] = "\n"
            if memory[start] & 0x80:
                pieces[start - names + 1] = ""
        return "".join(pieces)[1:].split("\n")

    def addresses(
        self, count: int, number: int, names: int, markers: int, table: int, index: int, alignment: int
    ) -> tuple[Layout, list[int]]:
        """The reading of the offsets by which the addresses rise and lie where a kernel lies."""
        for at, base_at, first in self.places(count, number, index):
            if at < 0 or at + 4 * count > len(self.memory):
                continue
            offsets = struct.unpack_from(f"<{count}i", self.memory, at)
            base = struct.unpack_from("<Q", self.memory, base_at)[0] if 0 <= base_at <= len(self.memory) - 8 else 0
            for form, origin, addresses in _readings(offsets, base, self.address + at):
                if _are_addresses(addresses):
                    at_guest = self.address.__add__
                    layout = Layout(
                        count,
                        at_guest(names),
                        at_guest(markers),
                        at_guest(table),
                        at_guest(index),
                        at_guest(at),
                        first,
                        form,
                        alignment,
                        origin,
                    )
                    return layout, addresses
        raise NoKallsyms(f"no kallsyms: {count} names are there, but no offsets that give rising kernel addresses")

    def places(self, count: int, number: int, index: int) -> Iterator[tuple[int, int, bool]]:
        """Candidates: position of the offsets, of the base, and whether they stand before the names.

        Padding is zero, and an alignment holds for both: a reading that is one entry off would rise as well.
        """
        after = index + 2 * _TOKENS
        for alignment in (8, 4):
            at = self.aligned(after, alignment)
            if not any(self.memory[after:at]):
                yield at, self.aligned(at + 4 * count, alignment), False
        base = number - 8
        for pad in (-4 * count % 8, 0):
            yield base - pad - 4 * count, base, True


def _readings(offsets: tuple[int, ...], base: int, here: int) -> Iterator[tuple[Form, int, list[int]]]:
    """Form, base and addresses of each way to read offsets that stand at ``here``."""
    if base >= _KERNEL_MAP:
        down = base - 1
        yield "absolute per-CPU", base, [x if x >= 0 else down - x for x in offsets]
        yield "base-relative", base, [base + (x & 0xFFFFFFFF) for x in offsets]
    yield "entry-relative", 0, list(map(add, range(here, here + 4 * len(offsets), 4), offsets))


def _are_addresses(addresses: list[int]) -> bool:
    """Rising, the last in the kernel's 2 GiB, and those before it either there or per-CPU offsets."""
    if not _KERNEL_MAP <= addresses[-1] < 1 << 64 or addresses[0] < 0:
        return False
    if not all(map(le, addresses, islice(addresses, 1, None))):
        return False
    low = bisect_right(addresses, _KERNEL_MAP - 1)
    return not low or addresses[low - 1] < 1 << 30
