"""Access paths of CO-RE: members and array elements followed from a type, in the object and in a kernel."""

from dataclasses import dataclass, field

from trampoline.bpf.btf.btf import Btf, BtfKind, Type
from trampoline.bpf.btf.ext import CoreKind, CoreRecord
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.objects.core_types import TypeComparison, is_composite, is_enum
from trampoline.bpf.objects.externs import essential_name

_MAX_STEPS = 64
_MAX_ANONYMOUS = 4096
"""Maximum number of members searched for a name: anonymous ones could contain one another without end."""

FIELDS = frozenset(kind for kind in CoreKind if kind <= CoreKind.FIELD_RSHIFT_U64)
ENUM_VALUES = frozenset({CoreKind.ENUMVAL_EXISTS, CoreKind.ENUMVAL_VALUE})


@dataclass(frozen=True, slots=True)
class AccessStep:
    """One step of a path: member or element ``index`` of the type; ``name``: the member's name, None for an element."""

    type_id: int
    index: int
    name: str | None


@dataclass(slots=True)
class CoreAccess:
    """A path through the types of one BTF. ``bit_offset``: distance of its end from its start, in bits."""

    btf: Btf
    root: int
    steps: list[AccessStep] = field(default_factory=list)
    bit_offset: int = 0

    def element(self, type_id: int, index: int) -> None:
        """Step to an element of the given type. Raises BtfError beyond the maximum length."""
        self.steps.append(AccessStep(type_id, index, None))
        self.bit_offset += index * self.btf.value(type_id).size * 8
        if len(self.steps) > _MAX_STEPS:
            raise BtfError(f"an access of more than {_MAX_STEPS} steps")


def local_access(btf: Btf, record: CoreRecord) -> CoreAccess:
    """The path stated by a relocation. Raises ObjectError for a path that the object's types do not have."""
    access = CoreAccess(btf, record.type_id)
    numbers = _numbers(record)
    if record.kind not in FIELDS | ENUM_VALUES:
        if numbers != [0]:
            raise _fault(record, "an access in a relocation of a type")
        return access
    current = btf.unmodified(record.type_id)
    first = numbers[0]
    if record.kind in ENUM_VALUES:
        names = btf.enumerators(current.id) if is_enum(current.kind) else ()
        if len(numbers) != 1 or first >= len(names):
            raise _fault(record, "no such value of an enum")
        access.steps.append(AccessStep(current.id, first, names[first][0]))
        return access
    access.element(current.id, first)
    for number in numbers[1:]:
        if is_composite(current.kind):
            members = btf.members(current.id)
            if number >= len(members):
                raise _fault(record, f"member {number} of a type with {len(members)}")
            member = members[number]
            access.bit_offset += member.bit_offset
            if member.name:
                access.steps.append(AccessStep(current.id, number, member.name))
            current = btf.unmodified(member.type_id)
        elif current.kind is BtfKind.ARRAY:
            if number >= current.count and not _is_flexible(access, current):
                raise _fault(record, f"element {number} of an array of {current.count}")
            current = btf.unmodified(current.type_id)
            access.element(current.id, number)
        else:
            raise _fault(record, f"{current.kind.name} has no members")
        if len(access.steps) > _MAX_STEPS:
            raise _fault(record, f"an access of more than {_MAX_STEPS} steps")
    return access


def kernel_access(local: CoreAccess, kernel: Btf, candidate: int, kind: CoreKind) -> CoreAccess | None:
    """The same path through a candidate type of the kernel; None if it has none. Raises BtfError for damaged BTF."""
    comparison = TypeComparison(local.btf, kernel)
    access = CoreAccess(kernel, candidate)
    if kind in ENUM_VALUES:
        return _enum_value(local, access)
    if kind is CoreKind.TYPE_MATCHES:
        return access if comparison.matches(local.root, candidate) else None
    if kind not in FIELDS:
        return access if comparison.exists(local.root, candidate) else None
    current = kernel.unmodified(candidate)
    for position, step in enumerate(local.steps):
        if step.name is not None:
            found = _member(comparison, local.btf.members(step.type_id)[step.index].type_id, step.name, access, current)
            if found is None:
                return None
            current = kernel.unmodified(found)
            continue
        if position:
            if current.kind is not BtfKind.ARRAY or (step.index >= current.count and not _is_flexible(access, current)):
                return None
            current = kernel.unmodified(current.type_id)
        access.element(current.id, step.index)
    return access


def _enum_value(local: CoreAccess, access: CoreAccess) -> CoreAccess | None:
    enum = access.btf.unmodified(access.root)
    wanted = essential_name(local.steps[0].name or "")
    for index, (name, _) in enumerate(access.btf.enumerators(enum.id) if is_enum(enum.kind) else ()):
        if essential_name(name) == wanted:
            access.steps.append(AccessStep(enum.id, index, name))
            return access
    return None


def _member(comparison: TypeComparison, local_type: int, name: str, access: CoreAccess, inside: Type) -> int | None:
    """Type of the member with this name, after a step to it; members of anonymous members are included."""
    # Each entry: a struct, and its bit offset in the outermost one. Depth first, in declaration order.
    pending = [(inside, 0)]
    looked_at = 0
    while pending:
        struct, distance = pending.pop()
        if not is_composite(struct.kind):
            continue
        nested = []
        for index, member in enumerate(access.btf.members(struct.id)):
            looked_at += 1
            offset = distance + member.bit_offset
            if not member.name:
                nested.append((access.btf.unmodified(member.type_id), offset))
            elif member.name == name:
                if not comparison.fields(local_type, member.type_id):
                    return None
                access.steps.append(AccessStep(struct.id, index, name))
                access.bit_offset += offset
                return member.type_id
        if looked_at > _MAX_ANONYMOUS:
            raise BtfError(f"more than {_MAX_ANONYMOUS} members to look for {name} in")
        pending += reversed(nested)
    return None


def _is_flexible(access: CoreAccess, array: Type) -> bool:
    """True if the array just reached is the last member of a struct and has no or one element."""
    last = access.steps[-1]
    if last.name is None or array.count > 1:
        return False
    return last.index == len(access.btf.members(last.type_id)) - 1


def _numbers(record: CoreRecord) -> list[int]:
    parts = record.access.split(":")
    if len(parts) > _MAX_STEPS or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise _fault(record, f"{record.access!r} is not an access")
    return [int(part) for part in parts]


def _fault(record: CoreRecord, reason: str) -> ObjectError:
    return ObjectError(f"the CO-RE relocation at slot {record.slot} has {reason}")
