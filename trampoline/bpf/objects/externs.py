"""An object's external references by name: kfuncs and symbols (``.ksyms``), configuration (``.kconfig``)."""

from dataclasses import dataclass
from enum import Enum

from emu.elf.reader import Binding, ElfSymbol
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.errors import BtfError, ObjectError

KCONFIG, KSYMS = ".kconfig", ".ksyms"

ConfigValue = int | str
"""A value from ``.config``: a number, ``y``, ``n``, ``m`` or text without its quotes."""

_TRISTATE = "libbpf_tristate"
_TRISTATE_VALUES = {"n": 0, "y": 1, "m": 2}


class ExternKind(Enum):
    """Kind of an extern."""

    CONFIG = "a value of the kernel's configuration"
    FUNCTION = "a kfunc"
    VARIABLE = "a variable of the kernel that BTF describes"
    ADDRESS = "the address of a symbol"


@dataclass(frozen=True, slots=True)
class Extern:
    """An undefined symbol. ``type_id``: its type in the object's BTF, a FUNC_PROTO for a function.

    ``number`` counts the externs of the object.
    """

    name: str
    kind: ExternKind
    type_id: int
    weak: bool
    number: int


def externs_of(symbols: tuple[ElfSymbol, ...], btf: Btf | None) -> dict[str, Extern]:
    """The externs by name. Raises ObjectError for one without BTF, BtfError for damaged BTF."""
    wanted = {
        symbol.name: symbol.binding == Binding.WEAK
        for symbol in symbols
        if symbol.is_undefined and symbol.name and symbol.binding in (Binding.GLOBAL, Binding.WEAK)
    }
    if not wanted:
        return {}
    declared = _declared(btf) if btf is not None else {}
    found: dict[str, Extern] = {}
    for name, weak in wanted.items():
        if btf is None or name not in declared:
            raise ObjectError(f"{name} is not defined, and BTF does not describe it")
        section, type_id = declared[name]
        found[name] = Extern(name, _kind(btf, name, section, type_id), btf.type(type_id).type_id, weak, len(found))
    return found


def _declared(btf: Btf) -> dict[str, tuple[str, int]]:
    declared = {}
    for type_id in range(1, len(btf)):
        if btf.kind(type_id) is BtfKind.DATASEC and (section := btf.type(type_id).name) in (KCONFIG, KSYMS):
            for variable in btf.variables(type_id):
                if btf.kind(variable.type_id) not in (BtfKind.VAR, BtfKind.FUNC):
                    raise BtfError(f"type id {variable.type_id} in {section} is neither a variable nor a function")
                declared[btf.type(variable.type_id).name] = section, variable.type_id
    return declared


def _kind(btf: Btf, name: str, section: str, type_id: int) -> ExternKind:
    if btf.kind(type_id) is BtfKind.FUNC:
        if section != KSYMS:
            raise ObjectError(f"{name} is a function", section=section)
        return ExternKind.FUNCTION
    if section == KCONFIG:
        return ExternKind.CONFIG
    # `extern const void name` needs only the address.
    untyped = btf.unmodified(btf.type(type_id).type_id).kind is BtfKind.VOID
    return ExternKind.ADDRESS if untyped else ExternKind.VARIABLE


def essential_name(name: str) -> str:
    """A name without its flavour: the part before the last three underscores (``bpf_core_essential_name_len``)."""
    for at in range(len(name) - 5, -1, -1):
        if name[at + 1 : at + 4] == "___" and name[at] != "_" and name[at + 4] != "_":
            return name[: at + 1]
    return name


@dataclass(frozen=True, slots=True)
class ConfigLayout:
    """The map ``.kconfig``: offset of each value in bytes, and the initial bytes."""

    offsets: dict[str, int]
    content: bytes


def config_layout(btf: Btf, externs: dict[str, Extern], values: dict[str, ConfigValue]) -> ConfigLayout:
    """Configuration values in the object's variables, the most strictly aligned first, as libbpf lays them out.

    Raises ObjectError for an unknown value (0 for a weak extern) or one that does not fit its variable.
    """
    wanted = [extern for extern in externs.values() if extern.kind is ExternKind.CONFIG]
    sized = [(btf.value(extern.type_id).size, _alignment(btf, extern.type_id), extern) for extern in wanted]
    offsets: dict[str, int] = {}
    content = bytearray()
    for size, alignment, extern in sorted(sized, key=lambda one: (-one[1], -one[0], one[2].name)):
        content += bytes(-len(content) % alignment)
        offsets[extern.name] = len(content)
        value = values.get(extern.name)
        if value is None:
            if not extern.weak:
                raise ObjectError(f"the value of {extern.name} is not known", section=KCONFIG)
            content += bytes(size)
        else:
            content += _value(btf, extern, size, value)
    return ConfigLayout(offsets, bytes(content))


def _alignment(btf: Btf, type_id: int) -> int:
    resolved = btf.unmodified(type_id)
    if resolved.kind is BtfKind.ARRAY:
        return _alignment(btf, resolved.type_id) if btf.unmodified(resolved.type_id).kind is not BtfKind.ARRAY else 1
    return min(max(btf.value(type_id).size, 1), 8)


def _value(btf: Btf, extern: Extern, size: int, value: ConfigValue) -> bytes:
    resolved = btf.unmodified(extern.type_id)
    fault = ObjectError(f"{extern.name} is {value!r}, which its variable cannot hold", section=KCONFIG)
    if resolved.kind is BtfKind.ARRAY:
        element = btf.unmodified(resolved.type_id)
        if element.kind is not BtfKind.INT or element.size != 1 or not isinstance(value, str) or not size:
            raise fault
        return value.encode()[: size - 1].ljust(size, b"\0")
    is_tristate = resolved.kind in (BtfKind.ENUM, BtfKind.ENUM64) and resolved.name == _TRISTATE
    if resolved.kind is not BtfKind.INT and not is_tristate:
        raise ObjectError(f"{extern.name} is {btf.value(extern.type_id).type}: no such value", section=KCONFIG)
    signed = resolved.kind is BtfKind.INT and btf.int_encoding(resolved.id)[0]
    is_bool = resolved.name in ("bool", "_Bool")
    if value in _TRISTATE_VALUES:
        letter = str(value)
        number = _TRISTATE_VALUES[letter]
        if resolved.name == "char":
            number = ord(letter)
        elif not is_tristate and (not is_bool or letter == "m"):
            raise fault
    elif isinstance(value, int) and not is_tristate and not is_bool:
        number = value
    else:
        raise fault
    try:
        return number.to_bytes(size, "little", signed=signed)
    except OverflowError:
        raise fault from None
