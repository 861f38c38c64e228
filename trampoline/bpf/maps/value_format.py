"""Conversion between bytes of keys, values and variables and Python values.

A format comes from BTF if the type is known: numbers with their sign, enums and pointers as numbers, arrays as lists
(of ``char`` as bytes), structures as ``Record``. Without a type 1, 2, 4 and 8 bytes are an unsigned number, other sizes
bytes. Bytes of the right size are accepted everywhere.
"""

import operator
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

from trampoline.bpf.btf.btf import Btf, BtfKind, Member
from trampoline.bpf.maps.errors import MapValueError

_INT_CHAR = "char"
_DEPTH = 32


class StructValue(Mapping[str, Any]):
    """A structure's members by name: ``value.pid`` and ``value["pid"]``. Read-only, so that it can be a key."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_members", dict(members))

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._members[name]
        except KeyError:
            raise AttributeError(f"no member {name!r}; members are {', '.join(self._members)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a record is a copy of guest memory: assign the whole value to the map")

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return hash(tuple((name, _hashable(value)) for name, value in self._members.items()))

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={value!r}' for name, value in self._members.items())})"


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class ValueFormat(Protocol):
    """Conversion between bytes of one size and a Python value."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value of ``size`` bytes."""
        ...

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises MapValueError."""
        ...


def _exact(value: Any, size: int) -> bytes | None:
    """A bytes-like value unchanged, None for another; MapValueError if its length is not ``size``."""
    if not isinstance(value, bytes | bytearray | memoryview):
        return None
    if len(value) != size:
        raise MapValueError(f"{len(value)} bytes, not {size}")
    return bytes(value)


@dataclass(frozen=True, slots=True)
class Number:
    """An integer; a negative one is converted to unsigned as in C."""

    size: int
    signed: bool = False

    def decode(self, data: bytes) -> int:
        return int.from_bytes(data, "little", signed=self.signed)

    def encode(self, value: SupportsIndex | bytes) -> bytes:
        """Two's complement, little endian. Raises MapValueError for a value that does not fit or is not a number."""
        if (exact := _exact(value, self.size)) is not None:
            return exact
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # bytes were handled above
        except TypeError:
            raise MapValueError(f"{value!r} is not a number") from None
        if not -(1 << 8 * self.size - 1) <= number < 1 << 8 * self.size:
            raise MapValueError(f"{number:#x} does not fit into {self.size} bytes")
        return (number & (1 << 8 * self.size) - 1).to_bytes(self.size, "little")


@dataclass(frozen=True, slots=True)
class Float:
    """A ``float`` or ``double``."""

    size: int

    def decode(self, data: bytes) -> float:
        return float(struct.unpack("<f" if self.size == 4 else "<d", data)[0])

    def encode(self, value: float | bytes) -> bytes:
        """IEEE 754. Raises MapValueError."""
        if (exact := _exact(value, self.size)) is not None:
            return exact
        try:
            return struct.pack("<f" if self.size == 4 else "<d", value)
        except (struct.error, OverflowError) as error:
            raise MapValueError(f"{value!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes without a type; ``text``: an array of char, which accepts shorter strings."""

    size: int
    text: bool = False

    def decode(self, data: bytes) -> bytes:
        """The bytes; for text those before the first NUL."""
        return data.split(b"\0", 1)[0] if self.text else data

    def encode(self, value: Any) -> bytes:
        """The bytes. Raises MapValueError for another size."""
        if isinstance(value, str):
            value = value.encode()
        if self.text and isinstance(value, bytes | bytearray) and len(value) < self.size:
            return bytes(value).ljust(self.size, b"\0")
        exact = _exact(value, self.size)
        if exact is None:
            raise MapValueError(f"{value!r} is not {self.size} bytes")
        return exact


@dataclass(frozen=True, slots=True)
class Array:
    """``count`` elements of one format, as a list."""

    element: ValueFormat
    count: int

    @property
    def size(self) -> int:
        """Size of all elements in bytes."""
        return self.element.size * self.count

    def decode(self, data: bytes) -> list[Any]:
        step = self.element.size
        return [self.element.decode(data[at * step : (at + 1) * step]) for at in range(self.count)]

    def encode(self, value: Any) -> bytes:
        """The elements' bytes. Raises MapValueError for another number of elements."""
        if (exact := _exact(value, self.size)) is not None:
            return exact
        try:
            items = list(value)
        except TypeError:
            raise MapValueError(f"{value!r} is not a sequence of {self.count} elements") from None
        if len(items) != self.count:
            raise MapValueError(f"{len(items)} elements, not {self.count}")
        return b"".join(map(self.element.encode, items))


@dataclass(frozen=True, slots=True)
class _Slot:
    """A member: its bytes, and its bits within them for a bit-field."""

    offset: int
    format: ValueFormat
    shift: int = 0
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Structure:
    """A struct or union; members of anonymous members count as its own."""

    size: int
    slots: Mapping[str, _Slot]

    def decode(self, data: bytes) -> StructValue:
        found: dict[str, Any] = {}
        for name, slot in self.slots.items():
            part = data[slot.offset : slot.offset + slot.format.size]
            if slot.bits:
                number = int.from_bytes(part, "little") >> slot.shift & (1 << slot.bits) - 1
                if isinstance(slot.format, Number) and slot.format.signed and number >> slot.bits - 1:
                    number -= 1 << slot.bits
                found[name] = number
            else:
                found[name] = slot.format.decode(part)
        return StructValue(found)

    def encode(self, value: Any) -> bytes:
        """The structure's bytes; omitted members are zero. Raises MapValueError for unknown members."""
        if (exact := _exact(value, self.size)) is not None:
            return exact
        if isinstance(value, tuple | list):
            if len(value) != len(self.slots):
                raise MapValueError(f"{len(value)} values for {len(self.slots)} members: {', '.join(self.slots)}")
            value = dict(zip(self.slots, value, strict=True))
        if not isinstance(value, Mapping):
            raise MapValueError(f"{value!r} is not a mapping of members: {', '.join(self.slots)}")
        out = bytearray(self.size)
        for name, part in value.items():
            slot = self.slots.get(name)
            if slot is None:
                raise MapValueError(f"no member {name!r}; members are {', '.join(self.slots)}")
            if not slot.bits:
                out[slot.offset : slot.offset + slot.format.size] = slot.format.encode(part)
                continue
            number = operator.index(part)
            if not -(1 << slot.bits - 1) <= number < 1 << slot.bits:
                raise MapValueError(f"{name}: {number:#x} does not fit into {slot.bits} bits")
            mask = (1 << slot.bits) - 1
            place = slice(slot.offset, slot.offset + slot.format.size)
            old = int.from_bytes(out[place], "little") & ~(mask << slot.shift)
            out[place] = (old | (number & mask) << slot.shift).to_bytes(slot.format.size, "little")
        return bytes(out)


def plain(size: int) -> ValueFormat:
    """The format for ``size`` bytes without a type."""
    return Number(size) if size in (1, 2, 4, 8) else Raw(size)


def format_of(btf: Btf | None, type_id: int, size: int) -> ValueFormat:
    """The format of a type of ``size`` bytes; the plain one for no type or a type of another size.

    Raises BtfError for BTF that contradicts itself.
    """
    if btf is None or not type_id:
        return plain(size)
    found = _of(btf, type_id, 0)
    return found if found is not None and found.size == size else plain(size)


def _of(btf: Btf, type_id: int, depth: int) -> ValueFormat | None:
    record = btf.unmodified(type_id)
    value = btf.value(record.id)
    if depth > _DEPTH:
        return Raw(value.size)
    match record.kind:
        case BtfKind.INT | BtfKind.ENUM | BtfKind.ENUM64 | BtfKind.PTR:
            signed = value.signed if record.kind is BtfKind.INT else record.kind is not BtfKind.PTR and record.flag
            return Number(value.size, signed) if value.size in (1, 2, 4, 8, 16) else Raw(value.size)
        case BtfKind.FLOAT:
            return Float(value.size) if value.size in (4, 8) else Raw(value.size)
        case BtfKind.ARRAY:
            element = btf.unmodified(record.type_id)
            if element.kind is BtfKind.INT and element.size == 1 and element.name == _INT_CHAR:
                return Raw(value.size, text=True)
            inner = _of(btf, record.type_id, depth + 1)
            return None if inner is None else Array(inner, record.count)
        case BtfKind.STRUCT | BtfKind.UNION:
            slots = dict(_slots(btf, record.id, 0, depth))
            return Structure(value.size, slots) if slots else Raw(value.size)
        case _:
            return None


def _slots(btf: Btf, type_id: int, base: int, depth: int) -> Iterator[tuple[str, _Slot]]:
    for member in btf.members(type_id):
        inner = btf.unmodified(member.type_id)
        if not member.name and inner.kind in (BtfKind.STRUCT, BtfKind.UNION) and depth < _DEPTH:
            yield from _slots(btf, inner.id, base + member.bit_offset // 8, depth + 1)
        elif member.name and (slot := _slot(btf, member, base, depth)) is not None:
            yield member.name, slot


def _slot(btf: Btf, member: Member, base: int, depth: int) -> _Slot | None:
    found = _of(btf, member.type_id, depth + 1)
    if found is None:
        return None
    if not member.bit_size and member.bit_offset % 8 == 0:
        return _Slot(base + member.bit_offset // 8, found)
    # A bit-field is in a storage unit of its type.
    unit = 8 * found.size
    bits = member.bit_size or 1
    return _Slot(base + member.bit_offset // unit * found.size, found, member.bit_offset % unit, bits)
