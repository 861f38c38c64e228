"""Prototype compatibility of a multi program with each function (``btf_check_func_part_match``).

A multi program is verified once, against its load-time target. On any other function the arguments that it reads must
be at the same offsets and of the same types; arguments that it does not read may differ. The series of 2025 has this
check in kernel/bpf/btf.c.
"""

from collections.abc import Collection
from dataclasses import dataclass
from errno import EINVAL
from itertools import accumulate

from emu.machine.address_map import round_up
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.errors import KernelError

_INTEGERS = frozenset({BtfKind.INT, BtfKind.ENUM, BtfKind.ENUM64})
_AGGREGATES = frozenset({BtfKind.STRUCT, BtfKind.UNION})


@dataclass(frozen=True, slots=True)
class ParamType:
    """One argument, or the return value (no name), with kind and size after typedefs and qualifiers.

    ``tag``: a struct's, union's or enum's name. ``members``: its number of members (``vlen``), ``flag``: the ``kflag``
    of its record; both None if a declaration does not say. ``points_to``: the name of the struct or union that a
    pointer points to, otherwise None.
    """

    name: str
    text: str
    kind: BtfKind
    size: int
    tag: str = ""
    members: int | None = 0
    flag: bool | None = None
    points_to: str | None = None


@dataclass(frozen=True, slots=True)
class FuncProto:
    """A prototype. ``proto_id``: its type id, 0 for a C declaration; equal non-zero ids mean identical prototypes."""

    args: tuple[ParamType, ...]
    ret: ParamType
    proto_id: int = 0


@dataclass(frozen=True, slots=True)
class AttachFunc:
    """A program's load-time target, and the arguments that the program reads.

    ``accessed_args`` is the kernel's mask: one bit per argument read, the next bit for the return value
    (``prog->aux->accessed_args``).
    """

    name: str
    proto: FuncProto
    accessed_args: int

    @classmethod
    def of(cls, name: str, proto: FuncProto, args: Collection[int], *, ret: bool) -> "AttachFunc":
        """The same from positions of arguments.

        Raises KernelError (-EINVAL) for an argument that the function does not have, and for the return value of a void
        function.
        """
        count = len(proto.args)
        for position in args:
            if not 0 <= position < count:
                raise KernelError(EINVAL, f"{name} doesn't have argument {position}; it has {count}")
        if ret and proto.ret.kind is BtfKind.VOID:
            raise KernelError(EINVAL, f"{name} returns nothing that could be read")
        return cls(name, proto, sum(1 << position for position in {*args, *([count] if ret else [])}))


def btf_check_func_part_match(load: AttachFunc, name: str, proto: FuncProto) -> None:
    """Reject a function on which the program would read other data than on its load-time target.

    Raises KernelError (-EINVAL), which names the function and the argument. An identical prototype passes without
    comparison: otherwise pointers to anything but structs would never match.
    """
    if proto == load.proto:
        return
    loaded, args = load.proto.args, proto.args
    at = dict(zip(_offsets(proto), args, strict=False))
    for position, (offset, arg) in enumerate(zip(_offsets(load.proto), loaded, strict=False)):
        if not load.accessed_args >> position & 1:
            continue
        read = f"{arg.text} {arg.name} of {load.name}"
        found = at.get(offset)
        if found is None:
            raise KernelError(EINVAL, f"{name} has no argument at byte {offset}, where the program reads {read}")
        if not _matches(arg, found):
            what = f"{found.text} {found.name}"
            raise KernelError(EINVAL, f"{name} has {what} at byte {offset}, where the program reads {read}")
    if load.accessed_args >> len(loaded) & 1:
        _check_ret(load, name, proto)


def _check_ret(load: AttachFunc, name: str, proto: FuncProto) -> None:
    # The return value follows the arguments.
    loaded, size = _offsets(load.proto)[-1], _offsets(proto)[-1]
    if loaded != size:
        raise KernelError(
            EINVAL, f"{name} has {size} bytes of arguments, {load.name} {loaded}: the return value is at another offset"
        )
    if not _matches(load.proto.ret, proto.ret):
        raise KernelError(
            EINVAL, f"{name} returns {proto.ret.text}; the program reads {load.proto.ret.text}, as {load.name} returns"
        )


def _offsets(proto: FuncProto) -> list[int]:
    """Offset of each argument in the context in bytes, and the end of the last; each starts a new slot."""
    return list(accumulate((round_up(arg.size, 8) for arg in proto.args), initial=0))


def _matches(one: ParamType, other: ParamType) -> bool:
    if one.kind is not other.kind or one.size != other.size:
        return False
    if not (_agree(one.members, other.members) and _agree(one.flag, other.flag)):
        return False
    if one.kind in _INTEGERS:
        return True
    if one.kind in _AGGREGATES:
        return one.tag == other.tag
    return one.kind is BtfKind.PTR and one.points_to is not None and one.points_to == other.points_to


def _agree(one: int | None, other: int | None) -> bool:
    return one is None or other is None or one == other
