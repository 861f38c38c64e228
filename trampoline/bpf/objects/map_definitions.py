"""Maps that an object defines in ``.maps``: structs whose member types state the attributes (``__uint``, ``__type``).

A number is the length of a pointed-to array, so that BTF contains it: ``int (*max_entries)[10]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from mmap import PAGESIZE

from trampoline.bpf.btf.btf import Btf, BtfKind, Member
from trampoline.bpf.errors import ObjectError
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

_MAX_VALUE = 1 << 30
_NUMBERS = ("type", "max_entries", "map_flags", "key_size", "value_size", "numa_node", "pinning", "map_extra")
_MAPS_OF_MAPS = (MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS)


@dataclass(frozen=True, slots=True)
class Definition:
    """A map of ``.maps``: ``offset`` and ``size`` of its variable in the section, ``values`` the offset of its values.

    All in bytes; ``values`` counts from the variable's start and is None if the map has no values.
    """

    spec: MapSpec
    offset: int
    size: int
    values: int | None


def map_definitions(btf: Btf, section_size: int) -> Iterator[Definition]:
    """The maps of an object whose ``.maps`` section has this size. Raises ObjectError; BtfError for damaged BTF."""
    sections = [i for i in range(1, len(btf)) if btf.kind(i) is BtfKind.DATASEC and btf.type(i).name == ".maps"]
    if len(sections) != 1:
        raise _error(f"the BTF has {len(sections)} such sections, not one")
    for variable in btf.variables(sections[0]):
        if btf.kind(variable.type_id) is not BtfKind.VAR:
            raise _error(f"type id {variable.type_id} is {btf.kind(variable.type_id).name}, not a variable")
        record = btf.type(variable.type_id)
        if not record.name:
            raise _error("a map has no name")
        if btf.linkage(variable.type_id) != "global":
            raise _error(f"map {record.name} is not global: static maps are not supported")
        if variable.offset + variable.size > section_size:
            raise _error(f"map {record.name} reaches beyond the section")
        spec, values = _definition(btf, record.name, record.type_id)
        yield Definition(spec, variable.offset, variable.size, values)


def _definition(btf: Btf, name: str, type_id: int, *, inner: bool = False) -> tuple[MapSpec, int | None]:
    struct = btf.unmodified(type_id)
    if struct.kind is not BtfKind.STRUCT:
        raise _error(f"map {name} is {struct.kind.name}, not a struct")
    members = btf.members(struct.id)
    numbers: dict[str, int] = {}
    types: dict[str, int] = {}
    values: Member | None = None
    for member in members:
        if member.name in _NUMBERS:
            numbers[member.name] = _number(btf, name, member)
        elif member.name in ("key", "value"):
            pointer = btf.unmodified(member.type_id)
            if pointer.kind is not BtfKind.PTR:
                raise _error(f"map {name}: {member.name} is {pointer.kind.name}, not a pointer to its type")
            types[member.name] = pointer.type_id
        elif member.name == "values":
            values = member
        else:
            raise _error(f"map {name}: unknown member {member.name or '(anonymous)'!r}")
    if not numbers.get("type"):
        raise _error(f"map {name}: type is not specified")
    try:
        map_type = MapType(numbers["type"])
    except ValueError:
        raise _error(f"map {name}: unknown type {numbers['type']}") from None
    sizes = {of: _size(btf, name, of, types.get(of), numbers.get(f"{of}_size")) for of in ("key", "value")}
    spec = MapSpec(
        name,
        map_type,
        sizes["key"],
        sizes["value"],
        numbers.get("max_entries", 0),
        numbers.get("map_flags", 0),
        key_type=types.get("key", 0),
        value_type=types.get("value", 0),
        extra=numbers.get("map_extra", 0),
    )
    if map_type in (MapType.RINGBUF, MapType.USER_RINGBUF):
        spec = replace(spec, max_entries=_ring_size(spec.max_entries))
    if values is None:
        return spec, None
    if inner:
        raise _error(f"map {name}: a map inside a map cannot have values")
    if values is not members[-1]:
        raise _error(f"map {name}: values is not the last member")
    return _with_values(btf, spec, values), values.bit_offset // 8


def _with_values(btf: Btf, spec: MapSpec, values: Member) -> MapSpec:
    array = btf.unmodified(values.type_id)
    pointer = btf.unmodified(array.type_id) if array.kind is BtfKind.ARRAY else None
    if pointer is None or array.count or pointer.kind is not BtfKind.PTR:
        raise _error(f"map {spec.name}: values is not an array of pointers without a length")
    if spec.value_size not in (0, 4):
        raise _error(f"map {spec.name}: values of {spec.value_size} bytes; references have 4")
    spec = replace(spec, key_size=spec.key_size or 4, value_size=4)
    target = btf.unmodified(pointer.type_id)
    if spec.type in _MAPS_OF_MAPS:
        inner, _ = _definition(btf, f"{spec.name}.inner", target.id, inner=True)
        return replace(spec, inner=inner)
    if spec.type is MapType.PROG_ARRAY:
        if target.kind is not BtfKind.FUNC_PROTO:
            raise _error(f"map {spec.name}: values are {target.kind.name}, not functions")
        return spec
    raise _error(f"map {spec.name}: maps of type {spec.type.name} have no values here")


def _number(btf: Btf, name: str, member: Member) -> int:
    pointer = btf.unmodified(member.type_id)
    array = btf.unmodified(pointer.type_id) if pointer.kind is BtfKind.PTR else pointer
    if pointer.kind is BtfKind.PTR and array.kind is BtfKind.ARRAY:
        return array.count
    # __ulong: a 64-bit number is the value of an enum.
    enum = array if pointer.kind is not BtfKind.PTR or array.kind in (BtfKind.ENUM, BtfKind.ENUM64) else None
    if enum is not None and enum.kind in (BtfKind.ENUM, BtfKind.ENUM64) and (found := btf.enumerators(enum.id)):
        return found[0][1] & 0xFFFFFFFFFFFFFFFF
    raise _error(f"map {name}: {member.name} is not a number made with __uint")


def _size(btf: Btf, name: str, of: str, type_id: int | None, stated: int | None) -> int:
    if type_id is None:
        return stated or 0
    size = btf.value(type_id).size
    if stated is not None and stated != size:
        raise _error(f"map {name}: {of}_size is {stated}, the {of}'s type has {size} bytes")
    if not 0 < size <= _MAX_VALUE:
        raise _error(f"map {name}: a {of} of {size} bytes")
    return size


def _ring_size(stated: int) -> int:
    """Ring size rounded up to a power of two of pages, as kernels require (``adjust_ringbuf_sz`` of libbpf)."""
    if not stated:
        return 0  # refused by the kernel
    return PAGESIZE << ((stated + PAGESIZE - 1) // PAGESIZE - 1).bit_length()


def _error(reason: str) -> ObjectError:
    return ObjectError(reason, section=".maps")
