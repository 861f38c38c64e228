"""Guest structures, each declared once: for field names in assembly text and for reads and writes from Python.

A declaration contains a structure's size and the offset of every field that is used. It provides

- symbols for assembly text: ``mov rax, qword ptr [rdi + percpu_ref.data]`` (``Struct.asm_symbols``),
- a view for Python: ``percpu_ref.view(memory, address).data`` (``Struct.view``),
- a packer of several fields at once (``Struct.codec``).

The structures of the machine and of the kernel proper are in ``emu.kernel.structs``, those of BPF in
``trampoline.bpf.structs``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct as Codec
from typing import Any, Protocol

from emu.errors import EmuError

_LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Unsigned integers by size, as ``struct`` spells them."""


class GuestMemory(Protocol):
    """Access to guest memory by virtual address, which a view needs."""

    def read(self, address: int, size: int) -> bytes:
        """Read ``size`` bytes at a guest address."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write bytes at a guest address."""
        ...


class StructError(EmuError):
    """A structure declaration that contradicts itself, or a value that does not fit into its field."""


class NoFieldError(StructError, AttributeError):
    """A field that the structure does not have."""


@dataclass(frozen=True, slots=True)
class StructField:
    """One field: ``count`` elements of ``size`` bytes at ``offset``; an array when ``count`` is not None.

    An element is an unsigned (or ``signed``) little-endian integer, raw ``bytes``, or an embedded structure.
    """

    offset: int
    size: int
    count: int | None = None
    signed: bool = False
    raw: bool = False
    struct: "Struct | None" = None

    @property
    def span(self) -> int:
        """Size of the whole field in bytes."""
        return self.size * (1 if self.count is None else self.count)

    def array(self, count: int) -> "StructField":
        """The same field as an array of ``count`` elements."""
        return StructField(self.offset, self.size, count, self.signed, self.raw, self.struct)


def u8(offset: int) -> StructField:
    """An unsigned byte, a bool."""
    return StructField(offset, 1)


def u16(offset: int) -> StructField:
    """An unsigned short."""
    return StructField(offset, 2)


def u32(offset: int) -> StructField:
    """An unsigned int, an enum."""
    return StructField(offset, 4)


def s32(offset: int) -> StructField:
    """A signed int."""
    return StructField(offset, 4, signed=True)


def u64(offset: int) -> StructField:
    """An unsigned long, a pointer."""
    return StructField(offset, 8)


def raw(offset: int, size: int) -> StructField:
    """Bytes that are no number: a name, a tag."""
    return StructField(offset, size, raw=True)


def embedded(offset: int, struct: "Struct") -> StructField:
    """A structure inside the structure."""
    return StructField(offset, struct.size, struct=struct)


class Struct:
    """One guest structure: its name (the kernel's), its size in bytes and its fields.

    A field may also be given as ``(offset, size)``: an unsigned integer. Raises StructError when fields overlap or lie
    outside, or when a name would hide a method of the view.
    """

    def __init__(self, name: str, *, size: int, fields: Mapping[str, StructField | tuple[int, int]]) -> None:
        self.name = name
        self.size = size
        self.fields = {key: StructField(*field) if isinstance(field, tuple) else field for key, field in fields.items()}
        end, last = 0, ""
        for key, field in sorted(self.fields.items(), key=lambda item: item[1].offset):
            if field.offset < 0 or field.offset + field.span > size:
                raise StructError(f"{name}.{key}: {field.offset:#x}+{field.span:#x} is outside {size:#x} bytes")
            if field.offset < end:
                raise StructError(f"{name}.{key} at {field.offset:#x} overlaps {name}.{last}")
            if hasattr(StructView, key):
                raise StructError(f"{name}.{key}: the name is reserved for a member of StructView")
            end, last = field.offset + field.span, key

    def __repr__(self) -> str:
        return f"<Struct {self.name} of {self.size:#x} bytes>"

    def field(self, path: str) -> StructField:
        """The field at a path (``"pcref.data"``), its offset from the start of this structure. Raises NoFieldError."""
        first, _, rest = path.partition(".")
        try:
            found = self.fields[first]
        except KeyError:
            raise NoFieldError(f"struct {self.name} has no field {first!r}") from None
        if not rest:
            return found
        if found.struct is None:
            raise NoFieldError(f"{self.name}.{first} is not a structure, so it has no field {rest!r}")
        inner = found.struct.field(rest)
        return StructField(found.offset + inner.offset, inner.size, inner.count, inner.signed, inner.raw, inner.struct)

    def offset(self, path: str) -> int:
        """Offset of a field in bytes from the start of the structure. Raises NoFieldError."""
        return self.field(path).offset

    def codec(self, *paths: str, start: int = 0, end: int | None = None) -> Codec:
        """Packer of several fields at once; each element of an array is a value of its own.

        ``start`` and ``end``: the range in bytes that is packed, ``end`` exclusive; by default up to the end of the
        last field. Padding is packed as zeros. Raises NoFieldError, and StructError for an embedded structure or for
        fields that are not in the order of their offsets.
        """
        text, at = "<", start
        for path in paths:
            field = self.field(path)
            letter = f"{field.size}s" if field.raw else _LETTERS.get(field.size)
            if letter is None or field.struct is not None or field.offset < at:
                raise StructError(f"{self.name}.{path} can't be packed at {at:#x}")
            element = letter.lower() if field.signed else letter
            text += f"{field.offset - at}x" + element * (1 if field.count is None else field.count)
            at = field.offset + field.span
        return Codec(f"{text}{max((at if end is None else end) - at, 0)}x")

    def asm_symbols(self, base: int = 0) -> dict[str, int]:
        """Offset plus ``base`` of every field, ``{"bpf_prog.active": 0x28, ...}``.

        Includes fields of embedded structures (``bpf_tramp_image.pcref.data``), and ``<name>.sizeof``.
        """
        symbols = {f"{self.name}.sizeof": self.size}
        symbols.update((f"{self.name}.{path}", base + offset) for path, offset in self._paths())
        return symbols

    def _paths(self) -> Iterator[tuple[str, int]]:
        for key, field in self.fields.items():
            yield key, field.offset
            if field.struct is not None:
                for path, offset in field.struct._paths():
                    yield f"{key}.{path}", field.offset + offset

    def view(self, memory: GuestMemory, address: int) -> "StructView":
        """The structure at a guest address: its attributes read and write the fields in guest memory."""
        return StructView(self, memory, address)


def struct_symbols(structs: Iterable[Struct]) -> dict[str, int]:
    """Assembly symbols of several structures."""
    symbols: dict[str, int] = {}
    for struct in structs:
        symbols.update(struct.asm_symbols())
    return symbols


class StructView:
    """A structure at a guest address.

    ``view.active`` reads, ``view.active = 5`` writes. An array field reads as an ArrayView and takes an iterable of
    exactly its length; an embedded structure reads as a StructView; a raw field reads and takes bytes (fewer bytes are
    padded with zeros). Raises NoFieldError, and StructError for a value that does not fit.
    """

    __slots__ = ("_address", "_memory", "_struct")

    _address: int
    _memory: GuestMemory
    _struct: Struct

    def __init__(self, struct: Struct, memory: GuestMemory, address: int) -> None:
        object.__setattr__(self, "_struct", struct)
        object.__setattr__(self, "_memory", memory)
        object.__setattr__(self, "_address", address)

    def __repr__(self) -> str:
        return f"<{self._struct.name} at {self._address:#x}>"

    def __getattr__(self, name: str) -> Any:
        field = self._struct.field(name)
        if field.count is not None:
            return ArrayView(f"{self._struct.name}.{name}", field, self._memory, self._address + field.offset)
        return _get(field, self._memory, self._address + field.offset)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._struct.field(name)
        where = f"{self._struct.name}.{name}"
        if field.count is not None:
            ArrayView(where, field, self._memory, self._address + field.offset).fill(value)
        else:
            self._memory.write(self._address + field.offset, _pack(where, field, value))

    def address_of(self, path: str) -> int:
        """The guest address of a field. Raises NoFieldError."""
        return self._address + self._struct.offset(path)

    def clear(self) -> None:
        """Write zeros over the whole structure."""
        self._memory.write(self._address, bytes(self._struct.size))


class ArrayView:
    """An array field at a guest address: indexing reads and writes one element."""

    __slots__ = ("_address", "_field", "_memory", "_where")

    def __init__(self, where: str, field: StructField, memory: GuestMemory, address: int) -> None:
        self._where = where
        self._field = field
        self._memory = memory
        self._address = address

    def __len__(self) -> int:
        return self._field.count or 0

    def __getitem__(self, index: int) -> Any:
        return _get(self._field, self._memory, self._element(index))

    def __setitem__(self, index: int, value: Any) -> None:
        self._memory.write(self._element(index), _pack(f"{self._where}[{index}]", self._field, value))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def fill(self, values: Iterable[Any]) -> None:
        """Write all elements; StructError for a wrong number of them, and nothing is written then."""
        packed = [_pack(f"{self._where}[{index}]", self._field, value) for index, value in enumerate(values)]
        if len(packed) != len(self):
            raise StructError(f"{self._where} has {len(self)} elements, not {len(packed)}")
        self._memory.write(self._address, b"".join(packed))

    def _element(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"{self._where}[{index}]: it has {len(self)} elements")
        return self._address + index * self._field.size


def _get(field: StructField, memory: GuestMemory, address: int) -> Any:
    if field.struct is not None:
        return field.struct.view(memory, address)
    data = memory.read(address, field.size)
    return bytes(data) if field.raw else int.from_bytes(data, "little", signed=field.signed)


def _pack(where: str, field: StructField, value: Any) -> bytes:
    if field.struct is not None:
        raise StructError(f"{where} is a structure: write its fields")
    if field.raw:
        if len(value) > field.size:
            raise StructError(f"{where}: {len(value)} bytes do not fit into {field.size}")
        return bytes(value).ljust(field.size, b"\0")
    try:
        return int(value).to_bytes(field.size, "little", signed=field.signed)
    except OverflowError:
        kind = "signed" if field.signed else "unsigned"
        raise StructError(f"{where}: {value:#x} does not fit into {field.size} {kind} bytes") from None
