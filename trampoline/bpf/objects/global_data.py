"""Maps of global variables: one array with one element per data section."""

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.objects.elf_sections import Sources
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType

_F_RDONLY_PROG, _F_MMAPABLE = 1 << 7, 1 << 10
_NAME_LENGTH = 15  # BPF_OBJ_NAME_LEN without its NUL
_SHORTEST_SUFFIX = 7


def map_name(object_name: str, section: str) -> str:
    """The kernel's name of a section's map: as much of the object's name as fits, then the section's.

    A custom section (``.data.mine``) keeps its name alone (``internal_map_name`` of libbpf).
    """
    suffix = min(max(_SHORTEST_SUFFIX, len(section)), _NAME_LENGTH)
    prefix = 0 if "." in section[1:] else _NAME_LENGTH - suffix
    name = object_name[:prefix] + section[:suffix]
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.") else "_" for letter in name)


def data_maps(sources: Sources, object_name: str) -> dict[int, MapSpec]:
    """The maps of global data by section index."""
    types = _section_types(sources.btf) if sources.btf is not None else {}
    maps = {}
    for section in sources.data:
        readonly = section.name == ".rodata" or section.name.startswith(".rodata.")
        type_id = types.get(section.name, 0)
        flags = _F_RDONLY_PROG if readonly else 0
        if sources.btf is not None and type_id and _is_shared(sources.btf, type_id):
            flags |= _F_MMAPABLE
        maps[section.index] = data_map(
            map_name(object_name, section.name),
            section.content or bytes(section.size),
            flags=flags,
            readonly=readonly,
            value_type=type_id,
        )
    return maps


def data_map(name: str, initial: bytes, *, flags: int, readonly: bool, value_type: int = 0) -> MapSpec:
    """An array with one element and this initial value."""
    return MapSpec(
        name,
        MapType.ARRAY,
        4,
        len(initial),
        1,
        flags,
        initial=initial,
        readonly=readonly,
        value_type=value_type,
    )


def _section_types(btf: Btf) -> dict[str, int]:
    return {btf.type(i).name: i for i in range(1, len(btf)) if btf.kind(i) is BtfKind.DATASEC}


def _is_shared(btf: Btf, section_type: int) -> bool:
    """True if user space can map the variables: unless all are static."""
    return any(
        btf.kind(variable.type_id) is BtfKind.VAR and btf.linkage(variable.type_id) != "static"
        for variable in btf.variables(section_type)
    )
