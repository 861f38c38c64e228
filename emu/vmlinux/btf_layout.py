"""Layouts from a kernel's BTF: member offsets, sizes, enumerators, function prototypes. Documentation/bpf/btf.rst."""

import struct
from array import array
from functools import cache, cached_property
from typing import NamedTuple

from emu.vmlinux.errors import VmlinuxError

_HEADER = struct.Struct("<HBBIIIII")
_MAGIC = 0xEB9F
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC, _PROTO, _ENUM64 = 1, 2, 3, 4, 5, 6, 8, 12, 13, 19
_QUALIFIERS = (_TYPEDEF, 9, 10, 11, 18)
"""typedef, volatile, const, restrict, type tag."""
_TAIL = {_INT: 4, _ARRAY: 12, 14: 4, 17: 4}
"""Bytes behind a type's 12, by kind; those per member are in ``_PER_MEMBER``."""
_PER_MEMBER = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _PROTO: 8, 15: 12, _ENUM64: 12}
_NAMED = frozenset({_STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC, _ENUM64})


class BadBtf(VmlinuxError):
    """Type information that can't be read."""


class UnknownLayout(VmlinuxError, KeyError):
    """A struct, member, enumerator or function that this kernel's type information lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this kernel's BTF has no {name}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class Member(NamedTuple):
    """A member: offset in bytes from the start of the outermost struct, and its type's number."""

    offset: int
    type: int


class BtfLayout:
    """Layouts of one kernel. Raises BadBtf."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise BadBtf(f"{len(data)} bytes of BTF are no header")
        magic, version, _flags, header, types_at, types_size, strings_at, strings_size = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != 1:
            raise BadBtf(f"no BTF: magic {magic:#x}, version {version}")
        if header + max(types_at + types_size, strings_at + strings_size) > len(data):
            raise BadBtf(f"BTF of {len(data)} bytes is cut off")
        self._data = data
        self._strings = data[header + strings_at : header + strings_at + strings_size]
        self._at: list[int] = [0]
        self._named: dict[tuple[int, int], int] = {}
        self._index(header + types_at, header + types_at + types_size)
        self.member = cache(self._find)

    @property
    def raw(self) -> bytes:
        """The type information as the kernel has it, header first."""
        return self._data

    def saved(self) -> tuple[bytes, bytes, dict[tuple[int, int], int]]:
        """The type information with its index, as plain values for ``restored``."""
        return self._data, array("I", self._at).tobytes(), self._named

    @classmethod
    def restored(cls, data: bytes, positions: bytes, named: dict[tuple[int, int], int]) -> "BtfLayout":
        """What ``saved`` gave, without reading the types again."""
        made = cls.__new__(cls)
        _magic, _version, _flags, header, _types, _size, strings_at, strings_size = _HEADER.unpack_from(data)
        at = array("I")
        at.frombytes(positions)
        made._data, made._at, made._named = data, at.tolist(), named
        made._strings = data[header + strings_at : header + strings_at + strings_size]
        made.member = cache(made._find)
        return made

    def _index(self, at: int, end: int) -> None:
        """Note where each type stands, and the first of each kind and name."""
        positions, named, unpack, data = self._at, self._named, struct.Struct("<II").unpack_from, self._data
        while at < end:
            name, info = unpack(data, at)
            kind = info >> 24 & 31
            if name and kind in _NAMED:
                named.setdefault((kind, name), len(positions))
            positions.append(at)
            per_member = _PER_MEMBER.get(kind)
            at += 12 + (_TAIL.get(kind, 0) if per_member is None else per_member * (info & 0xFFFF))
        if at != end:
            raise BadBtf("the types of the BTF end amid a type")

    def _type(self, number: int) -> tuple[int, int, int, int]:
        """Kind, number of members, size or referred type, and position of what follows."""
        if not 0 < number < len(self._at):
            return 0, 0, 0, 0
        at = self._at[number]
        _name, info, size = struct.unpack_from("<III", self._data, at)
        return info >> 24 & 31, info & 0xFFFF, size, at + 12

    def _text(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _number(self, name: str, *kinds: int) -> int | None:
        """Number of the type of this name; names are stored once (BTF is deduplicated)."""
        offset = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        if offset:
            for kind in kinds:
                if (kind, offset) in self._named:
                    return self._named[kind, offset]
        return None

    def _resolve(self, number: int) -> int:
        while (found := self._type(number))[0] in _QUALIFIERS:
            number = found[2]
        return number

    def _find(self, struct_name: str, path: str) -> Member | None:
        number = self._number(struct_name, _STRUCT, _UNION)
        offset = 0
        for name in path.split("."):
            found = None if number is None else self._member(number, name)
            if found is None:
                return None
            offset, number = offset + found.offset, self._resolve(found.type)
        return None if number is None else Member(offset, number)

    def _member(self, number: int, wanted: str) -> Member | None:
        kind, count, _size, at = self._type(number)
        if kind not in (_STRUCT, _UNION):
            return None
        for name, type_number, bits in struct.iter_unpack("<III", self._data[at : at + 12 * count]):
            offset = (bits & 0xFFFFFF) // 8
            if name:
                if self._text(name) == wanted:
                    return Member(offset, type_number)
            elif (inner := self._member(self._resolve(type_number), wanted)) is not None:
                return Member(offset + inner.offset, inner.type)
        return None

    # Questions ------------------------------------------------------------------------------------------------------

    def has(self, struct_name: str, path: str = "") -> bool:
        """Whether there is such a struct, with such a member."""
        if not path:
            return self._number(struct_name, _STRUCT, _UNION) is not None
        return self.member(struct_name, path) is not None

    def offset(self, struct_name: str, path: str) -> int:
        """Offset in bytes of member ``a.b.c``; members of anonymous structs and unions count. UnknownLayout."""
        found = self.member(struct_name, path)
        if found is None:
            raise UnknownLayout(f"struct {struct_name} member {path}")
        return found.offset

    def size(self, struct_name: str) -> int:
        """Bytes of a struct. UnknownLayout."""
        number = self._number(struct_name, _STRUCT, _UNION)
        if number is None:
            raise UnknownLayout(f"struct {struct_name}")
        return self._type(number)[2]

    def length(self, struct_name: str, path: str) -> int:
        """Elements of a member that is an array. UnknownLayout."""
        found = self.member(struct_name, path)
        kind, _count, _size, at = self._type(found.type) if found else (0, 0, 0, 0)
        if kind != _ARRAY:
            raise UnknownLayout(f"array {struct_name}.{path}")
        return int(struct.unpack_from("<I", self._data, at + 8)[0])

    def enumerators(self, enum: str) -> dict[str, int]:
        """Values of an enum. UnknownLayout."""
        number = self._number(enum, _ENUM, _ENUM64)
        if number is None:
            raise UnknownLayout(f"enum {enum}")
        kind, count, _size, at = self._type(number)
        form, step = ("<Ii", 8) if kind == _ENUM else ("<IQ", 12)
        return {self._text(row[0]): row[1] for row in struct.iter_unpack(form, self._data[at : at + step * count])}

    @cached_property
    def _unnamed(self) -> dict[str, int]:
        """Values of the enumerators of enums without a name."""
        values: dict[str, int] = {}
        for number in range(1, len(self._at)):
            at = self._at[number]
            if self._data[at + 7] & 31 == _ENUM and not any(self._data[at : at + 4]):
                _kind, count, _size, first = self._type(number)
                for name, value in struct.iter_unpack("<Ii", self._data[first : first + 8 * count]):
                    values[self._text(name)] = value
        return values

    def enumerator(self, name: str) -> int:
        """Value of an enumerator of an enum that has no name. UnknownLayout."""
        if name not in self._unnamed:
            raise UnknownLayout(f"enumerator {name}")
        return self._unnamed[name]

    def function(self, name: str) -> int | None:
        """Number of a function's type (the ``attach_btf_id``), None where there is none."""
        return self._number(name, _FUNC)

    def typedef(self, name: str) -> int | None:
        """Number of a typedef, None where there is none."""
        return self._number(name, _TYPEDEF)

    def function_name(self, number: int) -> str | None:
        """Name of the function whose type has this number."""
        if self._type(number)[0] != _FUNC:
            return None
        return self._text(struct.unpack_from("<I", self._data, self._at[number])[0])

    def arguments(self, function: str) -> int | None:
        """Number of arguments; None where the function is unknown."""
        number = self.function(function)
        return None if number is None else self._type(self._type(number)[2])[1]

    def return_bytes(self, function: str) -> int | None:
        """Bytes of what a function returns, 0 for void; None where the function is unknown."""
        number = self.function(function)
        if number is None:
            return None
        result = self._resolve(self._type(self._type(number)[2])[2])
        kind, _count, size, _at = self._type(result)
        return 0 if not kind else 8 if kind == _PTR else size
