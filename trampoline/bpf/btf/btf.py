"""Raw BTF: every function of a kernel with its prototype (Documentation/bpf/btf.rst, include/uapi/linux/btf.h).

A file is checked in one pass when it is read: sections, records, type ids and string offsets. Types, names and
prototypes are built on demand. Sizes are bytes; offsets in errors count from the (decompressed) start.
"""

import lzma
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from errno import EINVAL
from functools import cached_property
from pathlib import Path

from trampoline.bpf.btf.func_model import MAX_ARG_SIZE, MAX_BPF_FUNC_ARGS, FuncArg, FuncModel
from trampoline.bpf.errors import BtfError, KernelError

__all__ = ["Btf", "BtfError", "BtfKind", "DatasecEntry", "DeclTag", "Func", "Member", "Type", "Value", "model_of"]

MAX_SIZE = 32 << 20
"""Maximum size in bytes after decompression; a distribution's kernel has 4 to 8 MiB."""
MAX_DEPTH = 64
"""Maximum length of a chain of type references; a longer one is treated as a loop."""
MAX_NAME = 511
"""Maximum length of a name in bytes (KSYM_NAME_LEN without its NUL)."""

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")


class BtfKind(IntEnum):
    """``BTF_KIND_*``; ``VOID`` is type id 0."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


_KINDS = tuple(BtfKind)
# A record is name, info, size-or-type, then words specific to its kind, then `vlen` entries.
_HEAD_WORDS = tuple(
    {BtfKind.INT: 4, BtfKind.ARRAY: 6, BtfKind.VAR: 4, BtfKind.DECL_TAG: 4}.get(kind, 3) for kind in _KINDS
)
_ENTRY_WORDS = tuple(
    {
        BtfKind.STRUCT: 3,
        BtfKind.UNION: 3,
        BtfKind.ENUM: 2,
        BtfKind.FUNC_PROTO: 2,
        BtfKind.DATASEC: 3,
        BtfKind.ENUM64: 3,
    }.get(kind, 0)
    for kind in _KINDS
)
_QUALIFIERS = {
    BtfKind.VOLATILE: "volatile ",
    BtfKind.CONST: "const ",
    BtfKind.RESTRICT: "restrict ",
    BtfKind.TYPE_TAG: "",
}
# Kinds skipped by btf_type_is_modifier().
_MODIFIERS = frozenset({BtfKind.TYPEDEF, *_QUALIFIERS})
_REFERENCES = _MODIFIERS | {BtfKind.PTR, BtfKind.FUNC, BtfKind.FUNC_PROTO, BtfKind.VAR, BtfKind.DECL_TAG}
_STATE_SIZE = frozenset({BtfKind.INT, BtfKind.STRUCT, BtfKind.UNION, BtfKind.ENUM, BtfKind.ENUM64, BtfKind.FLOAT})
_IS_REFERENCE = tuple(kind in _REFERENCES for kind in _KINDS)
# Index of the word of an entry that is a string offset, and of the one that is a type id.
_ENTRY_NAME = {BtfKind.STRUCT: 0, BtfKind.UNION: 0, BtfKind.ENUM: 0, BtfKind.ENUM64: 0, BtfKind.FUNC_PROTO: 0}
_ENTRY_TYPE_ID = {BtfKind.STRUCT: 1, BtfKind.UNION: 1, BtfKind.FUNC_PROTO: 1, BtfKind.DATASEC: 0}
_LINKAGES = ("static", "global", "extern")
_INT_SIGNED = 1 << 24


@dataclass(frozen=True, slots=True)
class Value:
    """A type as passed or stored: its spelling, and its size and kind after typedefs and qualifiers are resolved.

    ``signed`` is ``BTF_FMODEL_SIGNED_ARG``: integers only. The spelling omits type tags.
    """

    type_id: int
    type: str
    size: int
    kind: BtfKind
    signed: bool = False

    @property
    def is_struct(self) -> bool:
        """A struct or union by value."""
        return self.kind in (BtfKind.STRUCT, BtfKind.UNION)


@dataclass(frozen=True, slots=True)
class Type:
    """One record as in the file, unresolved.

    ``size`` is set for kinds that state one, ``type_id`` for kinds that refer to a type (for an array: its element).
    ``count``: number of members, parameters, values or array elements; for a FUNC its linkage.
    """

    id: int
    kind: BtfKind
    name: str
    size: int
    type_id: int
    count: int
    flag: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct or union; ``bit_size`` is 0 unless it is a bit-field."""

    name: str
    type_id: int
    bit_offset: int
    bit_size: int


@dataclass(frozen=True, slots=True)
class DatasecEntry:
    """An entry of a DATASEC: the VAR ``type_id`` (a FUNC for functions declared in a section), its offset in bytes."""

    type_id: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DeclTag:
    """A declaration tag, ``bpf_kfunc``; ``component``: index of the tagged parameter or member, -1 for the whole."""

    name: str
    component: int


@dataclass(frozen=True, slots=True)
class Func:
    """A function. ``model`` is its raw prototype, which a kernel may refuse to trace: see ``model_of``.

    ``values`` describes each argument of the model; for a variadic function the last one is void and unnamed.
    """

    id: int
    name: str
    linkage: str
    proto_id: int
    model: FuncModel
    values: tuple[Value, ...]
    ret: Value

    @property
    def variadic(self) -> bool:
        """True if the function takes variable arguments."""
        return bool(self.values) and self.values[-1].type_id == 0


def model_of(func: Func | None, *, union_args: bool = False) -> FuncModel:
    """The model of a traced function, as ``btf_distill_func_proto`` (kernel/bpf/btf.c) builds it.

    ``func`` None: a program's function with an unreliable prototype; its model has five u64 arguments. Unions by value
    are refused as in 6.1 and 6.12, unless ``union_args``: later kernels (7.2 among them) accept them.

    Raises KernelError: EINVAL with the verifier's own words, ENOTSUPP if the arguments need more than 12 slots.
    """
    if func is None:
        return replace(FuncModel.of_slots("", 5), ret_size=8, ret_signed=False)
    if len(func.values) > MAX_BPF_FUNC_ARGS:
        raise KernelError(EINVAL, f"The function {func.name} has {len(func.values)} arguments. Too many.")
    passed = {BtfKind.INT, BtfKind.PTR, BtfKind.ENUM, BtfKind.ENUM64, BtfKind.STRUCT} | (
        {BtfKind.UNION} if union_args else set()
    )
    if func.ret.type_id and (func.ret.is_struct or func.ret.kind not in passed):
        raise KernelError(EINVAL, f"The function {func.name} return type {_kernel_name(func.ret.kind)} is unsupported.")
    for position, value in enumerate(func.values):
        if value.type_id == 0:
            last = position == len(func.values) - 1
            fault = "with variable args is unsupported." if last else "has malformed void argument."
            raise KernelError(EINVAL, f"The function {func.name} {fault}")
        if value.kind not in passed or value.size > MAX_ARG_SIZE:
            what = f"arg{position} type {_kernel_name(value.kind)}"
            raise KernelError(EINVAL, f"The function {func.name} {what} is unsupported.")
        if value.size == 0:
            raise KernelError(EINVAL, f"The function {func.name} has malformed void argument.")
    func.model.check()
    return func.model


def _kernel_name(kind: BtfKind) -> str:
    return kind.name if kind else "UNKNOWN"


class Btf:
    """The types and functions of one raw BTF: ``Btf.read("/sys/kernel/btf/vmlinux")``.

    Every method that reads raises BtfError, also for a type id that does not exist or is of another kind than
    requested.
    """

    def __init__(self, raw: bytes) -> None:
        """Take uncompressed BTF; ``Btf.read`` also takes files and compressed BTF."""
        self._base, types, self._strings_at, self._strings = _sections(raw)
        self._words = array("I", types)
        if sys.byteorder == "big":
            self._words.byteswap()
        self._starts: list[int] = []
        self._kinds = bytearray()
        self._scan()
        self._check()
        self._names: dict[int, str] = {}
        self._passed: dict[int, tuple[BtfKind, int]] = {}
        self._values = {0: (Value(0, "void", 0, BtfKind.VOID), 0)}
        self._args: dict[tuple[int, int], tuple[FuncArg, Value]] = {}
        self._protos: dict[int, tuple[tuple[FuncArg, ...], tuple[Value, ...], Value]] = {}

    @classmethod
    def read(cls, source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> "Btf":
        """Read a file or bytes: raw BTF, or raw BTF in one xz or gzip stream."""
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        if not isinstance(source, bytes):
            try:
                with Path(source).open("rb") as file:
                    source = file.read(MAX_SIZE + 1)
            except (OSError, ValueError) as error:
                raise BtfError(f"cannot read {str(source)!r}: {error}") from None
        return cls(_decompressed(source))

    def with_types(self, types: bytes, strings: bytes) -> "Btf":
        """A copy with more records appended; their strings follow this BTF's own strings."""
        return Btf(_packed(self._words.tobytes() + types, self._strings + strings))

    @property
    def raw(self) -> bytes:
        """The bytes of this BTF as a file has them, header first."""
        return _packed(self._words.tobytes(), self._strings)

    @property
    def strings_size(self) -> int:
        """Size of the string section in bytes: the string offset at which appended strings start."""
        return len(self._strings)

    def __len__(self) -> int:
        """Number of types, void included: ids are 0 to ``len - 1``."""
        return len(self._starts)

    def type(self, type_id: int) -> Type:
        """The record of a type id."""
        kind = self._kind(type_id)
        if kind is BtfKind.VOID:
            return Type(0, kind, "void", 0, 0, 0, False)
        at = self._starts[type_id]
        name, info, third = self._words[at : at + 3]
        count = info & 0xFFFFFF
        refers = _IS_REFERENCE[kind]
        if kind is BtfKind.ARRAY:
            third, count, refers = self._words[at + 3], self._words[at + 5], True
        return Type(
            type_id, kind, self._name(name), 0 if refers else third, third if refers else 0, count, bool(info >> 31)
        )

    def of_kind(self, kind: BtfKind) -> Iterator[int]:
        """Type ids of all types of a kind, in ascending order."""
        return (type_id for type_id, found in enumerate(self._kinds) if found == kind)

    def kind(self, type_id: int) -> BtfKind:
        """Kind of a type."""
        return self._kind(type_id)

    def value(self, type_id: int) -> Value:
        """Spelling, size and kind of a type through typedefs, qualifiers, arrays and type tags."""
        self._kind(type_id)
        return self._value(type_id, 0)[0]

    def unmodified(self, type_id: int) -> Type:
        """The record after typedefs, qualifiers and type tags (``btf_type_skip_modifiers``)."""
        return self.type(self._skip_modifiers(type_id)[0])

    def members(self, type_id: int) -> tuple[Member, ...]:
        """Members of a struct or union in declaration order; typedefs and qualifiers of the type are skipped first."""
        type_id, _ = self._skip_modifiers(type_id)
        if self._kind(type_id) not in (BtfKind.STRUCT, BtfKind.UNION):
            raise BtfError(f"type id {type_id} is {self._kind(type_id).name}, not a struct or union")
        at = self._starts[type_id]
        info, words = self._words[at + 1], self._words
        members = []
        for entry in range(at + 3, at + 3 + 3 * (info & 0xFFFFFF), 3):
            name, member_type, offset = words[entry : entry + 3]
            # With the kind flag the upper 8 bits are a bit-field's size; without it, the INT's own encoding has the
            # size.
            bit_offset, bit_size = (offset & 0xFFFFFF, offset >> 24) if info >> 31 else (offset, 0)
            members.append(Member(self._name(name), member_type, bit_offset, bit_size))
        return tuple(members)

    @cached_property
    def percpu_variables(self) -> frozenset[int]:
        """Type ids of the variables in the section ``.data..percpu``."""
        found: set[int] = set()
        for type_id in range(1, len(self)):
            if self._kind(type_id) is BtfKind.DATASEC and self.type(type_id).name == ".data..percpu":
                at = self._starts[type_id]
                found.update(self._words[at + 3 : at + 3 + 3 * self.type(type_id).count : 3])
        return frozenset(found)

    def enumerators(self, type_id: int) -> tuple[tuple[str, int], ...]:
        """Names and values of an enum of 32 or 64 bits, in its order; its flag says if values are signed."""
        kind, at = self._kind(type_id), self._starts[type_id]
        if kind not in (BtfKind.ENUM, BtfKind.ENUM64):
            raise BtfError(f"type id {type_id} is {kind.name}, not an enum")
        words, info = self._words, self._words[at + 1]
        step = _ENTRY_WORDS[kind]
        bits = 32 * (step - 1)
        found = []
        for entry in range(at + 3, at + 3 + step * (info & 0xFFFFFF), step):
            value = words[entry + 1] | (words[entry + 2] << 32 if step == 3 else 0)
            if info >> 31 and value >> bits - 1:
                value -= 1 << bits
            found.append((self._name(words[entry]), value))
        return tuple(found)

    def variables(self, type_id: int) -> tuple[DatasecEntry, ...]:
        """The entries of a DATASEC, in its order."""
        if (kind := self._kind(type_id)) is not BtfKind.DATASEC:
            raise BtfError(f"type id {type_id} is {kind.name}, not a section")
        words, at = self._words, self._starts[type_id]
        first, after = at + 3, at + 3 + 3 * (words[at + 1] & 0xFFFFFF)
        return tuple(DatasecEntry(*words[entry : entry + 3]) for entry in range(first, after, 3))

    def linkage(self, type_id: int) -> str:
        """``static``, ``global`` or ``extern`` of a VAR or FUNC."""
        kind, at = self._kind(type_id), self._starts[type_id]
        if kind not in (BtfKind.VAR, BtfKind.FUNC):
            raise BtfError(f"type id {type_id} is {kind.name}, neither a variable nor a function")
        number = self._words[at + 3] if kind is BtfKind.VAR else self._words[at + 1] & 0xFFFFFF
        if number >= len(_LINKAGES):
            raise self._error(at, f"type id {type_id} has the unknown linkage {number}")
        return _LINKAGES[number]

    def int_encoding(self, type_id: int) -> tuple[bool, int, int]:
        """Of an INT: True if signed, its bit offset, its width in bits."""
        if (kind := self._kind(type_id)) is not BtfKind.INT:
            raise BtfError(f"type id {type_id} is {kind.name}, not an integer")
        word = self._words[self._starts[type_id] + 3]
        return bool(word & _INT_SIGNED), word >> 16 & 0xFF, word & 0xFF

    def place(self, type_id: int) -> int:
        """Offset of a type's record in bytes from the (uncompressed) start."""
        self._kind(type_id)
        return self._base + 4 * self._starts[type_id]

    def names(self) -> Iterator[tuple[int, BtfKind, str]]:
        """(type id, kind, name) of every type with a name, by rising type id."""
        words, starts, kinds = self._words, self._starts, self._kinds
        for type_id in range(1, len(starts)):
            if offset := words[starts[type_id]]:
                yield type_id, _KINDS[kinds[type_id]], self._name(offset)

    def string(self, offset: int) -> str:
        """The string at an offset into the string section, of any length; ``.BTF.ext`` refers to such strings."""
        if not 0 <= offset < len(self._strings):
            raise BtfError(f"string offset {offset} is not below {len(self._strings)}")
        return self._strings[offset : self._strings.index(b"\0", offset)].decode("utf-8", "backslashreplace")

    def decl_tags(self, type_id: int) -> tuple[DeclTag, ...]:
        """The declaration tags of a type, function or variable."""
        self._kind(type_id)
        return tuple(self._decl_tags.get(type_id, ()))

    def type_tags(self, type_id: int) -> tuple[str, ...]:
        """The type tags of a type and, if it is a pointer, of the type it points to (``user``, ``percpu``, ``rcu``)."""
        type_id, tags = self._skip_modifiers(type_id)
        if self._kind(type_id) is BtfKind.PTR:
            tags += self._skip_modifiers(self._words[self._starts[type_id] + 2])[1]
        return tuple(tags)

    def functions(self) -> Iterator[Func]:
        """Every function, by ascending type id."""
        return map(self._func, self._func_ids())

    def function(self, type_id: int) -> Func:
        """The function with a BTF id (``attach_btf_id``)."""
        if (kind := self._kind(type_id)) is not BtfKind.FUNC:
            raise BtfError(f"type id {type_id} is {kind.name}, not a function")
        return self._func(type_id)

    def functions_named(self, name: str) -> tuple[Func, ...]:
        """Functions with a name, by ascending type id: several if static functions share it, none if unknown."""
        return tuple(map(self._func, self._by_name.get(name, ())))

    def struct_named(self, name: str) -> int:
        """Type id of the first struct with a name; 0 if none exists."""
        return self._struct_ids.get(name, 0)

    def signatures(self) -> Iterator[tuple[int, str, int]]:
        """(type id, name, type id of the prototype) of every function, by ascending type id; reads nothing else."""
        words, starts = self._words, self._starts
        for type_id in self._func_ids():
            at = starts[type_id]
            yield type_id, self._name(words[at]), words[at + 2]

    def prototype(self, proto_id: int) -> tuple[Sequence[int], int]:
        """Type ids of the parameters and of the return value of a FUNC_PROTO."""
        if (kind := self._kind(proto_id)) is not BtfKind.FUNC_PROTO:
            raise BtfError(f"type id {proto_id} is {kind.name}, not a prototype")
        at = self._starts[proto_id]
        _, info, ret = self._words[at : at + 3]
        return self._words[at + 4 : at + 3 + 2 * (info & 0xFFFFFF) : 2], ret

    def parameter_names(self, proto_id: int) -> tuple[str, ...]:
        """Names of the parameters of a FUNC_PROTO; empty for unnamed ones."""
        count = len(self.prototype(proto_id)[0])
        at = self._starts[proto_id]
        return tuple(map(self._name, self._words[at + 3 : at + 3 + 2 * count : 2]))

    def passed(self, type_id: int) -> tuple[BtfKind, int]:
        """Kind and size of a type as in ``value``, without its spelling."""
        known = self._passed.get(type_id)
        if known is None:
            resolved, _ = self._skip_modifiers(type_id)
            kind = self._kind(resolved)
            if kind is BtfKind.PTR:
                known = kind, 8
            elif kind in _STATE_SIZE:
                known = kind, self._words[self._starts[resolved] + 2]
            else:
                value = self.value(resolved)
                known = value.kind, value.size
            self._passed[type_id] = known
        return known

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for type_id in self._func_ids():
            ids.setdefault(self._name(self._words[self._starts[type_id]]), []).append(type_id)
        return ids

    @cached_property
    def _struct_ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        struct, words = int(BtfKind.STRUCT), self._words
        for type_id, kind in enumerate(self._kinds):
            if kind == struct and (at := words[self._starts[type_id]]):
                ids.setdefault(self._name(at), type_id)
        return ids

    @cached_property
    def _decl_tags(self) -> dict[int, list[DeclTag]]:
        tags: dict[int, list[DeclTag]] = {}
        for at in (self._starts[i] for i, kind in enumerate(self._kinds) if kind == BtfKind.DECL_TAG):
            name, _, target, component = self._words[at : at + 4]
            tag = DeclTag(self._name(name), component - (component >> 31 << 32))
            tags.setdefault(target, []).append(tag)
        return tags

    def _scan(self) -> None:
        words, end, at = self._words, len(self._words), 0
        # Id 0 is void and has no record.
        starts, kinds = self._starts, self._kinds
        starts.append(0)
        kinds.append(0)
        while at < end:
            if at + 3 > end:
                raise self._error(at, f"type id {len(starts)} is cut off")
            info = words[at + 1]
            # vlen has 24 bits and kind 7 since 7.x; older formats have 16 and 5, and zeros above.
            kind = info >> 24 & 0x7F
            if not 0 < kind < len(_KINDS):
                raise self._error(at + 1, f"type id {len(starts)} is of the unknown kind {kind}")
            starts.append(at)
            kinds.append(kind)
            at += _HEAD_WORDS[kind] + _ENTRY_WORDS[kind] * (info & 0xFFFFFF)
            if at > end:
                what = f"type id {len(starts) - 1} ({_KINDS[kind].name}, vlen {info & 0xFFFFFF})"
                raise self._error(starts[-1], f"{what} reaches beyond the type section")

    def _check(self) -> None:
        words, starts, kinds, entry_words = self._words, self._starts, self._kinds, _ENTRY_WORDS
        nr_types, strings = len(starts), len(self._strings)
        function, prototype, array_kind = int(BtfKind.FUNC), int(BtfKind.FUNC_PROTO), int(BtfKind.ARRAY)
        for at, kind in zip(starts[1:], kinds[1:], strict=True):
            if words[at] >= strings:
                self._refuse(at, 1, "string offset", strings)
            if _IS_REFERENCE[kind]:
                target = words[at + 2]
                if target >= nr_types:
                    self._refuse(at + 2, 1, "type id", nr_types)
                if kind == function:
                    if kinds[target] != prototype:
                        raise self._error(at + 2, f"the prototype of a function is a {_KINDS[kinds[target]].name}")
                    if words[at + 1] & 0xFFFFFF >= len(_LINKAGES):
                        raise self._error(at + 1, f"a function has the unknown linkage {words[at + 1] & 0xFFFFFF}")
            elif kind == array_kind and max(words[at + 3 : at + 5]) >= nr_types:
                self._refuse(at + 3, 1, "type id", nr_types)
            if (step := entry_words[kind]) and (count := words[at + 1] & 0xFFFFFF):
                first, after = at + 3, at + 3 + count * step
                if kind in _ENTRY_NAME and max(words[first:after:step]) >= strings:
                    self._refuse(first, step, "string offset", strings)
                if kind in _ENTRY_TYPE_ID:
                    first += _ENTRY_TYPE_ID[_KINDS[kind]]
                    if max(words[first:after:step]) >= nr_types:
                        self._refuse(first, step, "type id", nr_types)

    def _refuse(self, at: int, step: int, what: str, limit: int) -> None:
        # Called with the first of several positions, one of which is at fault.
        while self._words[at] < limit:
            at += step
        note = "a module's BTF cannot be read without its base"
        raise self._error(at, f"{what} {self._words[at]} is not below {limit} ({note})")

    def _error(self, word: int, reason: str) -> BtfError:
        return BtfError(reason, self._base + 4 * word)

    def _kind(self, type_id: int) -> BtfKind:
        if not 0 <= type_id < len(self._starts):
            raise BtfError(f"no type id {type_id}; the last is {len(self._starts) - 1}")
        return _KINDS[self._kinds[type_id]]

    def _name(self, offset: int) -> str:
        name = self._names.get(offset)
        if name is None:
            end = self._strings.find(b"\0", offset, offset + MAX_NAME + 1)
            if end < 0:
                raise BtfError(f"a name is longer than {MAX_NAME} bytes", self._strings_at + offset)
            name = self._names[offset] = self._strings[offset:end].decode("utf-8", "backslashreplace")
        return name

    def _skip_modifiers(self, type_id: int) -> tuple[int, list[str]]:
        tags: list[str] = []
        for _ in range(MAX_DEPTH):
            kind = self._kind(type_id)
            if kind not in _MODIFIERS:
                return type_id, tags
            at = self._starts[type_id]
            if kind is BtfKind.TYPE_TAG:
                tags.append(self._name(self._words[at]))
            type_id = self._words[at + 2]
        raise self._too_deep(type_id)

    def _too_deep(self, type_id: int) -> BtfError:
        return self._error(self._starts[type_id], f"type id {type_id} is in a loop or more than {MAX_DEPTH} deep")

    def _value(self, type_id: int, level: int) -> tuple[Value, int]:
        # `level` counts the references above, the second result those below; their sum decides, independent of the
        # cache.
        known = self._values.get(type_id)
        if known is None:
            if level >= MAX_DEPTH:
                raise self._too_deep(type_id)
            known = self._values[type_id] = self._new_value(type_id, level)
        if level + known[1] > MAX_DEPTH:
            raise self._too_deep(type_id)
        return known

    def _new_value(self, type_id: int, level: int) -> tuple[Value, int]:
        at, kind = self._starts[type_id], _KINDS[self._kinds[type_id]]
        name, info, third = self._words[at : at + 3]
        text, depth = self._name(name), 0
        if kind in _MODIFIERS:
            inner, depth = self._value(third, level + 1)
            text = text if kind is BtfKind.TYPEDEF else _QUALIFIERS[kind] + inner.type
            return Value(type_id, text, inner.size, inner.kind, inner.signed), depth + 1
        match kind:
            case BtfKind.PTR:
                inner, depth = self._value(third, level + 1)
                return Value(type_id, f"{inner.type} *", 8, kind), depth + 1
            case BtfKind.ARRAY:
                inner, depth = self._value(self._words[at + 3], level + 1)
                count = self._words[at + 5]
                return Value(type_id, f"{inner.type}[{count}]", inner.size * count, kind), depth + 1
            case BtfKind.INT:
                return Value(type_id, text, third, kind, bool(self._words[at + 3] & _INT_SIGNED)), 0
            case BtfKind.STRUCT | BtfKind.UNION | BtfKind.ENUM | BtfKind.ENUM64 | BtfKind.FWD:
                keyword = kind.name.lower().removesuffix("64")
                if kind is BtfKind.FWD:
                    third, keyword = 0, "union" if info >> 31 else "struct"
                return Value(type_id, f"{keyword} {text or '(anon)'}", third, kind), 0
            case BtfKind.FUNC_PROTO:
                return Value(type_id, "fn", 0, kind), 0
            case _:
                return Value(type_id, text, 0 if _IS_REFERENCE[kind] else third, kind), 0

    def _func_ids(self) -> Iterator[int]:
        function = int(BtfKind.FUNC)
        return (type_id for type_id, kind in enumerate(self._kinds) if kind == function)

    def _func(self, type_id: int) -> Func:
        words, at = self._words, self._starts[type_id]
        name, linkage, proto = self._name(words[at]), _LINKAGES[words[at + 1] & 0xFFFFFF], words[at + 2]
        if proto not in self._protos:
            self._protos[proto] = self._prototype(proto)
        args, values, ret = self._protos[proto]
        return Func(type_id, name, linkage, proto, FuncModel(name, args, ret.size, ret.signed), values, ret)

    def _prototype(self, proto: int) -> tuple[tuple[FuncArg, ...], tuple[Value, ...], Value]:
        words, at = self._words, self._starts[proto]
        args, values = [], []
        for param in range(at + 3, at + 3 + 2 * (words[at + 1] & 0xFFFFFF), 2):
            key = words[param], words[param + 1]
            known = self._args.get(key)
            if known is None:
                value = self._value(key[1], 0)[0]
                arg = FuncArg(self._name(key[0]), value.type, value.size, value.signed, value.is_struct)
                known = self._args[key] = arg, value
            args.append(known[0])
            values.append(known[1])
        return tuple(args), tuple(values), self._value(words[at + 2], 0)[0]


def _packed(types: bytes, strings: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, 1, 0, _HEADER.size, 0, len(types), len(types), len(strings)) + types + strings


def _sections(raw: bytes) -> tuple[int, bytes, int, bytes]:
    # Offset and bytes of the type section and of the string section.
    if len(raw) > MAX_SIZE:
        raise BtfError(f"more than {MAX_SIZE} bytes", MAX_SIZE)
    if raw[:2] == _MAGIC.to_bytes(2, "big"):
        raise BtfError("big-endian BTF is not supported", 0)
    if raw[:2] != _MAGIC.to_bytes(2, "little"):
        raise BtfError(f"not BTF: it begins with {raw[:4].hex() or 'nothing'}, not 9feb", 0)
    if len(raw) < _HEADER.size:
        raise BtfError(f"the header is cut off: {len(raw)} of {_HEADER.size} bytes", len(raw))
    _, version, flags, header, type_off, type_len, str_off, str_len = _HEADER.unpack_from(raw)
    if version != 1:
        raise BtfError(f"version {version} is not supported", 2)
    if flags:
        raise BtfError(f"flags 0x{flags:x} are not supported", 3)
    if header < _HEADER.size:
        raise BtfError(f"a header of {header} bytes; it has at least {_HEADER.size}", 4)
    for name, field, offset, size in (("type", 8, type_off, type_len), ("string", 16, str_off, str_len)):
        if header + offset + size > len(raw):
            end = header + offset + size
            raise BtfError(f"the {name} section ends at byte {end}, the file at {len(raw)}", field)
    if type_off % 4 or type_len % 4:
        raise BtfError(f"the type section, {type_len} bytes at {type_off}, is not in words of 4 bytes", 8)
    if not type_len:
        raise BtfError("it contains no types", 12)
    types_at, strings_at = header + type_off, header + str_off
    strings = raw[strings_at : strings_at + str_len]
    if not strings or strings[0] or strings[-1]:
        raise BtfError("the string section does not begin and end with NUL", strings_at)
    return types_at, raw[types_at : types_at + type_len], strings_at, strings


def _decompressed(data: bytes) -> bytes:
    try:
        if data.startswith(b"\xfd7zXZ\0"):
            xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=4 * MAX_SIZE)
            return _whole(xz.decompress(data, MAX_SIZE + 1), xz.eof, xz.unused_data)
        if data.startswith(b"\x1f\x8b"):
            gzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            return _whole(gzip.decompress(data, MAX_SIZE + 1), gzip.eof, gzip.unused_data)
    except (lzma.LZMAError, zlib.error) as error:
        raise BtfError(f"damaged compressed BTF: {error}") from None
    return data


def _whole(raw: bytes, complete: bool, after: bytes) -> bytes:
    if len(raw) > MAX_SIZE:
        raise BtfError(f"more than {MAX_SIZE} bytes", MAX_SIZE)
    if not complete:
        raise BtfError("compressed BTF is cut off", len(raw))
    if after:
        raise BtfError(f"{len(after)} bytes follow the compressed BTF", len(raw))
    return raw
