"""The three comparisons of CO-RE between a type of the object and one of the kernel (libbpf's relo_core.c).

Fields may differ in ways that a load can be adapted to; a type exists if one with its name and shape does; a type
matches if everything in the object's type also holds in the kernel's.
"""

from trampoline.bpf.btf.btf import Btf, BtfKind, Member
from trampoline.bpf.errors import BtfError
from trampoline.bpf.objects.externs import essential_name

_ENUMS = frozenset({BtfKind.ENUM, BtfKind.ENUM64})
_COMPOSITES = frozenset({BtfKind.STRUCT, BtfKind.UNION})
_NAMED = frozenset({BtfKind.VOID, BtfKind.FWD, *_ENUMS, *_COMPOSITES})
_MAX_DEPTH = 32
_MAX_STEPS = 1 << 16
"""Maximum number of comparisons for one pair of types; anonymous members and prototypes could branch without end."""


def kinds_agree(one: BtfKind, other: BtfKind) -> bool:
    """True if types of these kinds are comparable: the width of an enum is ignored."""
    return one is other or (one in _ENUMS and other in _ENUMS)


def is_composite(kind: BtfKind) -> bool:
    """True for a struct or union."""
    return kind in _COMPOSITES


def is_enum(kind: BtfKind) -> bool:
    """True for an enum of 32 or 64 bits."""
    return kind in _ENUMS


class TypeComparison:
    """Comparison of types of one BTF with types of another. Raises BtfError for damaged or too deep types."""

    def __init__(self, local: Btf, kernel: Btf) -> None:
        self._local, self._kernel = local, kernel
        self._steps = 0

    def fields(self, local_id: int, kernel_id: int) -> bool:
        """True if a field of one type can be read as the other (``bpf_core_fields_are_compat``)."""
        for _ in range(_MAX_DEPTH):
            local, kernel = self._local.unmodified(local_id), self._kernel.unmodified(kernel_id)
            if is_composite(local.kind) and is_composite(kernel.kind):
                return True
            if not kinds_agree(local.kind, kernel.kind):
                return False
            if local.kind in (BtfKind.PTR, BtfKind.FLOAT):
                return True
            if local.kind is BtfKind.FWD or is_enum(local.kind):
                names = essential_name(local.name), essential_name(kernel.name)
                return not all(names) or names[0] == names[1]
            if local.kind is BtfKind.INT:
                return self._are_plain(local.id, kernel.id)
            if local.kind is not BtfKind.ARRAY:
                return False
            local_id, kernel_id = local.type_id, kernel.type_id
        raise BtfError(f"type id {local_id} is more than {_MAX_DEPTH} deep")

    def exists(self, local_id: int, kernel_id: int) -> bool:
        """True if the types have the same shape, including all unnamed types that they refer to."""
        self._steps = 0
        return self._same_shape(local_id, kernel_id, 0)

    def matches(self, local_id: int, kernel_id: int) -> bool:
        """True if everything that the object's type states holds in the kernel's type."""
        self._steps = 0
        return self._matches(local_id, kernel_id, through_pointer=False, depth=0)

    def _step(self, depth: int) -> None:
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise BtfError(f"types are more than {_MAX_DEPTH} deep, or too many to compare")

    def _are_plain(self, local_id: int, kernel_id: int) -> bool:
        # Integers with a bit offset are bit-fields in an old encoding.
        return not self._local.int_encoding(local_id)[1] and not self._kernel.int_encoding(kernel_id)[1]

    def _same_shape(self, local_id: int, kernel_id: int, depth: int) -> bool:
        self._step(depth)
        local, kernel = self._local.unmodified(local_id), self._kernel.unmodified(kernel_id)
        if not kinds_agree(local.kind, kernel.kind):
            return False
        if local.kind in _NAMED:
            return True
        if local.kind is BtfKind.INT:
            return self._are_plain(local.id, kernel.id)
        if local.kind in (BtfKind.PTR, BtfKind.ARRAY):
            return self._same_shape(local.type_id, kernel.type_id, depth + 1)
        if local.kind is not BtfKind.FUNC_PROTO:
            return False
        (ours, our_ret), (theirs, their_ret) = self._local.prototype(local.id), self._kernel.prototype(kernel.id)
        return (
            len(ours) == len(theirs)
            and all(self._same_shape(one, other, depth + 1) for one, other in zip(ours, theirs, strict=True))
            and self._same_shape(our_ret, their_ret, depth + 1)
        )

    def _matches(self, local_id: int, kernel_id: int, *, through_pointer: bool, depth: int) -> bool:
        self._step(depth)
        local, kernel = self._local.unmodified(local_id), self._kernel.unmodified(kernel_id)
        if essential_name(local.name) != essential_name(kernel.name):
            return False
        if local.kind is not kernel.kind and not (is_enum(local.kind) and is_enum(kernel.kind)):
            # Through a pointer a forward declaration matches the struct.
            return through_pointer and self._declares(local.kind, local.flag, kernel.kind, kernel.flag)
        match local.kind:
            case BtfKind.VOID | BtfKind.FLOAT:
                return True
            case BtfKind.FWD:
                return local.flag == kernel.flag
            case BtfKind.INT:
                signs = self._local.int_encoding(local.id)[0], self._kernel.int_encoding(kernel.id)[0]
                return local.size == kernel.size and signs[0] == signs[1]
            case BtfKind.ENUM | BtfKind.ENUM64:
                known = {essential_name(name) for name, _ in self._kernel.enumerators(kernel.id)}
                return through_pointer or all(
                    essential_name(name) in known for name, _ in self._local.enumerators(local.id)
                )
            case BtfKind.STRUCT | BtfKind.UNION:
                return through_pointer or self._members_match(local.id, kernel.id, depth)
            case BtfKind.PTR:
                return self._matches(local.type_id, kernel.type_id, through_pointer=True, depth=depth + 1)
            case BtfKind.ARRAY:
                return local.count == kernel.count and self._matches(
                    local.type_id, kernel.type_id, through_pointer=through_pointer, depth=depth + 1
                )
            case BtfKind.FUNC_PROTO:
                return self._prototypes_match(local.id, kernel.id, depth)
        return False

    @staticmethod
    def _declares(local: BtfKind, local_union: bool, kernel: BtfKind, kernel_union: bool) -> bool:
        if local is BtfKind.FWD:
            return kernel is (BtfKind.UNION if local_union else BtfKind.STRUCT)
        if kernel is BtfKind.FWD:
            return local is (BtfKind.UNION if kernel_union else BtfKind.STRUCT)
        return False

    def _members_match(self, local_id: int, kernel_id: int, depth: int) -> bool:
        theirs = self._kernel.members(kernel_id)
        return all(self._member_matches(ours, theirs, depth) for ours in self._local.members(local_id))

    def _member_matches(self, ours: Member, theirs: tuple[Member, ...], depth: int) -> bool:
        return any(
            self._matches(ours.type_id, other.type_id, through_pointer=False, depth=depth + 1)
            for other in theirs
            if essential_name(other.name) == essential_name(ours.name)
        )

    def _prototypes_match(self, local_id: int, kernel_id: int, depth: int) -> bool:
        (ours, our_ret), (theirs, their_ret) = self._local.prototype(local_id), self._kernel.prototype(kernel_id)
        pairs = [*zip(ours, theirs, strict=False), (our_ret, their_ret)]
        return len(ours) == len(theirs) and all(
            self._matches(one, other, through_pointer=False, depth=depth + 1) for one, other in pairs
        )
