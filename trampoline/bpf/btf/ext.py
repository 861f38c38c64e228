"""Reader of ``.BTF.ext``: by instruction, function starts, source lines and CO-RE relocations.

The layout is ``struct btf_ext_header`` and ``struct btf_ext_info_sec`` of Documentation/bpf/btf.rst. Positions in code
are slots of 8 bytes, counted from the start of their section.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error, unpack_from
from typing import TypeVar

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import BtfError, ObjectError

_HEADER = Struct("<HBBI4I")
_MAGIC = 0xEB9F
_CORE_HEADER_SIZE = 32  # includes the CO-RE table's offset and length, which older compilers do not write
_MAX_RECORD = 1 << 12
_MAX_SIZE = 16 << 20


class CoreKind(IntEnum):
    """``enum bpf_core_relo_kind``."""

    FIELD_BYTE_OFFSET = 0
    FIELD_BYTE_SIZE = 1
    FIELD_EXISTS = 2
    FIELD_SIGNED = 3
    FIELD_LSHIFT_U64 = 4
    FIELD_RSHIFT_U64 = 5
    TYPE_ID_LOCAL = 6
    TYPE_ID_TARGET = 7
    TYPE_EXISTS = 8
    TYPE_SIZE = 9
    ENUMVAL_EXISTS = 10
    ENUMVAL_VALUE = 11
    TYPE_MATCHES = 12


@dataclass(frozen=True, slots=True)
class FuncRecord:
    """The FUNC of type id ``type_id`` starts at a slot."""

    slot: int
    type_id: int


@dataclass(frozen=True, slots=True)
class LineRecord:
    """Source line of the code from a slot on; ``file`` and ``text`` are string offsets in the BTF."""

    slot: int
    file: int
    text: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class CoreRecord:
    """``struct bpf_core_relo``: the property of the type that the instruction at a slot has as its operand."""

    slot: int
    type_id: int
    access: str
    kind: CoreKind


_T = TypeVar("_T", FuncRecord, LineRecord, CoreRecord)


@dataclass(frozen=True, slots=True)
class BtfExt:
    """The records by name of their code section, sorted by slot."""

    funcs: dict[str, tuple[FuncRecord, ...]]
    lines: dict[str, tuple[LineRecord, ...]]
    core: dict[str, tuple[CoreRecord, ...]]


def read_btf_ext(raw: bytes, btf: Btf) -> BtfExt:
    """Read the bytes of a ``.BTF.ext`` with its names in ``btf``. Raises ObjectError for damage."""
    try:
        return _read(raw, btf)
    except error:
        raise ObjectError("a record is cut off", section=".BTF.ext") from None
    except BtfError as fault:
        raise ObjectError(str(fault), section=".BTF.ext") from None


def _read(raw: bytes, btf: Btf) -> BtfExt:
    if len(raw) < _HEADER.size:
        raise ObjectError(f"the header is cut off: {len(raw)} of {_HEADER.size} bytes", section=".BTF.ext")
    if len(raw) > _MAX_SIZE:
        raise ObjectError(f"more than {_MAX_SIZE} bytes", section=".BTF.ext")
    magic, version, flags, size, *places = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise ObjectError(f"begins with {magic:#06x}, not {_MAGIC:#06x}", section=".BTF.ext")
    if version != 1 or flags:
        raise ObjectError(f"version {version} with flags {flags:#x} is not supported", section=".BTF.ext")
    if not _HEADER.size <= size <= len(raw):
        raise ObjectError(f"a header of {size} bytes", section=".BTF.ext")
    if size >= _CORE_HEADER_SIZE:
        places += unpack_from("<2I", raw, _HEADER.size)
    else:
        places += (0, 0)

    def table(index: int, what: str, words: int, make: Callable[..., _T]) -> dict[str, tuple[_T, ...]]:
        offset, length = places[2 * index : 2 * index + 2]
        if size + offset + length > len(raw):
            raise ObjectError(f"{what} reaches byte {size + offset + length} of {len(raw)}", section=".BTF.ext")
        found: dict[str, list[_T]] = {}
        for section, records in _sections(raw[size + offset : size + offset + length], btf, what, words):
            found.setdefault(section, []).extend(make(section, *record) for record in records)
        # Sorted by slot, so that the records of one function are adjacent.
        return {section: tuple(sorted(made, key=lambda one: one.slot)) for section, made in found.items()}

    def line(section: str, at: int, file: int, text: int, place: int) -> LineRecord:
        return LineRecord(_slot(at, section, "line"), file, text, place >> 10, place & 0x3FF)

    def core(section: str, at: int, type_id: int, access: int, kind: int) -> CoreRecord:
        if kind > max(CoreKind):
            raise ObjectError(f"a CO-RE relocation at byte {at:#x} is of unknown kind {kind}", section=section)
        return CoreRecord(_slot(at, section, "CO-RE relocation"), type_id, btf.string(access), CoreKind(kind))

    return BtfExt(
        table(0, "func_info", 2, lambda section, at, type_id: FuncRecord(_slot(at, section, "function"), type_id)),
        table(1, "line_info", 4, line),
        table(2, "core_relo", 4, core),
    )


def _slot(offset: int, section: str, what: str) -> int:
    if offset % 8:
        raise ObjectError(f"a {what} at byte {offset:#x} is not at an instruction", section=section)
    return offset // 8


def _sections(raw: bytes, btf: Btf, what: str, words: int) -> Iterator[tuple[str, Iterator[tuple[int, ...]]]]:
    """Pairs (code section, its records, each cut to the first ``words`` words) of a table; none for an empty table."""
    if not raw:
        return
    (record_size,) = unpack_from("<I", raw)
    if record_size % 4 or not 4 * words <= record_size <= _MAX_RECORD:
        raise ObjectError(f"{what} has records of {record_size} bytes", section=".BTF.ext")
    at = 4
    while at < len(raw):
        name, count = unpack_from("<2I", raw, at)
        at += 8
        if not count or at + count * record_size > len(raw):
            raise ObjectError(f"{what} has {count} records where {len(raw) - at} bytes follow", section=".BTF.ext")
        layout = Struct(f"<{words}I{record_size - 4 * words}x")
        yield btf.string(name), layout.iter_unpack(raw[at : at + count * record_size])
        at += count * record_size
