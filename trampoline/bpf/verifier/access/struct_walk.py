"""The field at an offset of a kernel struct, by its BTF (``btf_struct_walk``, kernel/bpf/btf.c)."""

from dataclasses import dataclass
from errno import EACCES, EFAULT, EINVAL

from trampoline.bpf.btf.btf import Btf, BtfKind, Member, Type
from trampoline.bpf.verifier.values.kinds import Flag

_MODIFIERS = (BtfKind.TYPEDEF, BtfKind.VOLATILE, BtfKind.CONST, BtfKind.RESTRICT, BtfKind.TYPE_TAG)
_SIZED = (BtfKind.INT, BtfKind.STRUCT, BtfKind.UNION, BtfKind.ENUM, BtfKind.ENUM64, BtfKind.FLOAT)
_TAGS = {"user": Flag.MEM_USER, "percpu": Flag.MEM_PERCPU, "rcu": Flag.MEM_RCU}
_LIMIT = 64
"""Maximum depth of nested structs; deeper ones contain themselves and are invalid."""


class WalkFault(Exception):
    """Refusal of a walk: an errno and the log's line."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno
        self.message = message


@dataclass(frozen=True, slots=True)
class StructWalkResult:
    """Result of a walk: a number, or a pointer."""

    pointer: bool = False
    struct_id: int = 0
    """Struct that the pointer refers to; 0: anything else, including void."""
    flags: Flag = Flag.NONE
    """Flags of a pointer from type tags and unions on the path."""
    field: str = ""
    """Name of the pointer's member."""
    holder: str = ""
    """Name of the struct that contains the member."""


@dataclass(frozen=True, slots=True)
class _Nested:
    struct_id: int


@dataclass(slots=True)
class _Way:
    """Data collected over the whole walk."""

    unions_untrusted: bool
    """True if pointers read through a union with several members are untrusted (6.4)."""
    flags: Flag = Flag.NONE


def pointee(btf: Btf, pointer: Type) -> tuple[Type, Flag]:
    """Target type of a pointer after typedefs and qualifiers, and the flags from its type tags."""
    flags = Flag.NONE
    kind = btf.type(pointer.type_id)
    while kind.kind in _MODIFIERS:
        if kind.kind is BtfKind.TYPE_TAG:
            flags |= _TAGS.get(kind.name, Flag.NONE)
        kind = btf.type(kind.type_id)
    return kind, flags


def find_field(btf: Btf, struct_id: int, off: int, size: int, *, unions_untrusted: bool) -> StructWalkResult:
    """The field in ``size`` bytes at ``off`` of a struct. Raises WalkFault if they are not a whole field."""
    way = _Way(unions_untrusted)
    for _ in range(_LIMIT):
        found = _walk(btf, struct_id, off, size, way)
        if isinstance(found, StructWalkResult):
            return found
        struct_id, off = found.struct_id, 0
    raise WalkFault(EINVAL, "")


def nested_at(btf: Btf, struct_id: int, off: int) -> int:
    """The outermost struct that starts at ``off`` of a struct; 0 if none does."""
    try:
        found = _walk(btf, struct_id, off, 1, _Way(True))
    except WalkFault:
        return 0
    return found.struct_id if isinstance(found, _Nested) else 0


def same_struct(btf: Btf, struct_id: int, off: int, need_btf: Btf, need_id: int, *, strict: bool) -> bool:
    """``btf_struct_ids_match``: the needed struct is at ``off`` of this one, or is this one itself."""
    if off == 0 and btf is need_btf and struct_id == need_id:
        return True
    if strict:
        return False
    for _ in range(_LIMIT):
        struct_id, off = nested_at(btf, struct_id, off), 0
        if not struct_id:
            return False
        if btf is need_btf and struct_id == need_id:
            return True
    return False


def type_size(btf: Btf, type_id: int) -> tuple[int, int, Type, int]:
    """(bytes, number of elements, element type, its id) of a type; arrays count all dimensions as one.

    A type that is not an array is one element of itself. Raises WalkFault for a type without a size.
    """
    count = 1
    resolved = _unmodified_id(btf, type_id)
    kind = btf.type(resolved)
    is_array = kind.kind is BtfKind.ARRAY
    while kind.kind is BtfKind.ARRAY:
        count *= kind.count
        resolved = _unmodified_id(btf, kind.type_id)
        kind = btf.type(resolved)
    if kind.kind is BtfKind.PTR:
        size = 8
    elif kind.kind in _SIZED:
        size = kind.size
    else:
        raise WalkFault(EFAULT, "")
    return size * count, count if is_array else 0, kind, resolved


def _unmodified_id(btf: Btf, type_id: int) -> int:
    kind = btf.type(type_id)
    while kind.kind in _MODIFIERS:
        type_id = kind.type_id
        kind = btf.type(type_id)
    return type_id


def _walk(btf: Btf, struct_id: int, off: int, size: int, way: _Way) -> StructWalkResult | _Nested:
    """Descend to a field, or to a struct that starts at the offset."""
    for _ in range(_LIMIT):
        holder = btf.unmodified(struct_id)
        if holder.kind not in (BtfKind.STRUCT, BtfKind.UNION):
            raise WalkFault(EINVAL, f"Type '{holder.name}' is not a struct")
        members = btf.members(holder.id)
        if way.unions_untrusted and holder.kind is BtfKind.UNION and len(members) != 1:
            way.flags |= Flag.PTR_UNTRUSTED
        if off + size > holder.size:
            element = _beyond(btf, holder, members, off, size)
            if element.kind is BtfKind.INT:
                return StructWalkResult()
            moff = members[-1].bit_offset // 8
            struct_id, off = element.id, (off - moff) % max(element.size, 1)
            continue
        inner = _member(btf, holder, members, off, size, way)
        if not isinstance(inner, tuple):
            return inner
        struct_id, off = inner
    raise WalkFault(EINVAL, "")


def _beyond(btf: Btf, holder: Type, members: tuple[Member, ...], off: int, size: int) -> Type:
    """Element of the flexible array at the end of a struct, for an access past the struct's end."""
    if members:
        last = btf.unmodified(members[-1].type_id)
        if last.kind is BtfKind.ARRAY and last.count == 0 and off >= members[-1].bit_offset // 8:
            element = btf.unmodified(last.type_id)
            if element.kind in (BtfKind.INT, BtfKind.STRUCT, BtfKind.UNION):
                return element
    raise WalkFault(EACCES, f"access beyond struct {_named(holder)} at off {off} size {size}")


def _member(
    btf: Btf, holder: Type, members: tuple[Member, ...], off: int, size: int, way: _Way
) -> StructWalkResult | _Nested | tuple[int, int]:
    """The member at the offset; (struct, offset) if the offset is inside a nested one."""
    name = _named(holder)
    for member in members:
        moff = member.bit_offset // 8
        if off + size <= moff:
            break
        if member.bit_size:
            if off <= moff and (member.bit_offset + member.bit_size + 7) // 8 <= off + size:
                return StructWalkResult()
            continue
        if off < moff:
            break
        try:
            whole, count, kind, kind_id = type_size(btf, member.type_id)
        except WalkFault as fault:
            raise WalkFault(EFAULT, f"field {member.name} doesn't have size") from fault
        end = moff + whole
        if off >= end:
            continue
        each = whole
        if count:
            each = whole // count
            moff += (off - moff) // each * each
        if kind.kind in (BtfKind.STRUCT, BtfKind.UNION):
            return _Nested(kind_id) if off == moff else (kind_id, off - moff)
        if kind.kind is BtfKind.PTR:
            if each != size or off != moff:
                where = f"moff {moff} in struct {name} with off {off} size {size}"
                raise WalkFault(EACCES, f"cannot access ptr member {member.name} with {where}")
            target, flags = pointee(btf, kind)
            if target.kind in (BtfKind.STRUCT, BtfKind.UNION):
                return StructWalkResult(True, target.id, way.flags | flags, member.name, name)
            return StructWalkResult(True)
        if off + size > end and not way.flags & Flag.PTR_UNTRUSTED:
            where = f"(mend:{end}) in struct {name} with off {off} size {size}"
            raise WalkFault(EACCES, f"access beyond the end of member {member.name} {where}")
        return StructWalkResult()
    raise WalkFault(EINVAL, f"struct {name} doesn't have field at offset {off}")


def _named(holder: Type) -> str:
    return holder.name or "(anon)"
