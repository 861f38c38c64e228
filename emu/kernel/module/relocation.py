"""Relocation of a compiled object, as apply_relocate_add() in arch/x86/kernel/module.c does it for a module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from asm.encodings import NOP5
from emu.kernel.module.object_file import FENTRY, ModuleError, ObjectFile, ObjectSymbol, RelocationType, Section
from emu.kernel.text.entry import SITE_SIZE

_ADDRESSES = 1 << 64


@dataclass(frozen=True, slots=True)
class LinkedSection:
    """A section at its guest address, relocated."""

    name: str
    address: int
    content: bytes
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class LinkedFunction:
    """A function at its guest address; `site` is the address of its nop5, None if it was compiled without one."""

    name: str
    address: int
    size: int
    is_global: bool
    site: int | None


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """A linked object: bytes to write, guest addresses of its symbols by name, its functions by address."""

    sections: tuple[LinkedSection, ...]
    symbols: Mapping[str, int]
    functions: tuple[LinkedFunction, ...]


def link_object(
    obj: ObjectFile, place: Callable[[Section], int], resolve: Callable[[str], int | None]
) -> LinkedObject:
    """Link `obj` to run at the addresses from `place`.

    `place` returns the guest address of a section, a multiple of its alignment. `resolve` returns that of an external
    symbol, or None; it is called once for each of `obj.undefined`. Every patch site becomes a nop5, as ftrace makes it
    at boot. Raises ModuleError for sections that are misaligned or overlap, for undefined symbols (all are named), and
    for a relocation whose value does not fit.
    """
    try:
        addresses = _place(obj, place)
        resolved = _resolve(obj, resolve)
        sections = tuple(_linked_section(obj, section, addresses, resolved) for section in obj.sections)
    except ModuleError as error:
        raise ModuleError(error.reason, section=error.section, object_name=obj.name) from None
    defined = [symbol for symbol in obj.symbols if not symbol.is_undefined]
    # Later ones win: a global symbol over a local one of the same name.
    defined.sort(key=lambda symbol: symbol.is_global)
    symbols = {symbol.name: _address(symbol, addresses, resolved) for symbol in defined}
    sites = {(site.section, site.function.offset): addresses[site.section] + site.offset for site in obj.fentry_sites}
    functions = tuple(
        LinkedFunction(
            function.name,
            _address(function, addresses, resolved),
            function.size,
            function.is_global,
            sites.get((function.section or 0, function.offset)),
        )
        for function in obj.functions
    )
    return LinkedObject(sections, symbols, tuple(sorted(functions, key=lambda function: function.address)))


def _place(obj: ObjectFile, place: Callable[[Section], int]) -> dict[int, int]:
    addresses: dict[int, int] = {}
    for section in obj.sections:
        address = addresses[section.index] = place(section)
        if address < 0 or address + section.size > _ADDRESSES:
            raise ModuleError(f"no guest address: {address:#x}", section=section.name)
        if address % section.alignment:
            raise ModuleError(f"{address:#x} is not a multiple of {section.alignment:#x}", section=section.name)
    for below, above in pairwise(sorted(obj.sections, key=lambda section: addresses[section.index])):
        if addresses[below.index] + below.size > addresses[above.index]:
            raise ModuleError(f"overlaps {below.name} at {addresses[above.index]:#x}", section=above.name)
    return addresses


def _resolve(obj: ObjectFile, resolve: Callable[[str], int | None]) -> dict[str, int]:
    answers = {name: resolve(name) for name in obj.undefined}
    weak = {symbol.name for symbol in obj.symbols if symbol.is_weak}
    missing = [name for name, address in answers.items() if address is None and name not in weak]
    if missing:
        raise ModuleError(f"undefined: {', '.join(missing)}")
    # An undefined weak symbol is at address 0.
    return {name: address or 0 for name, address in answers.items()}


def _address(symbol: ObjectSymbol, addresses: Mapping[int, int], resolved: Mapping[str, int]) -> int:
    if symbol.section is not None:
        return addresses[symbol.section] + symbol.offset
    return symbol.offset if symbol.is_absolute else resolved[symbol.name]


def _linked_section(
    obj: ObjectFile, section: Section, addresses: Mapping[int, int], resolved: Mapping[str, int]
) -> LinkedSection:
    content = bytearray(section.content) if section.content else bytearray(section.size)
    for reloc in section.relocations:
        if reloc.symbol.name == FENTRY:
            continue
        value = _address(reloc.symbol, addresses, resolved) + reloc.addend
        if reloc.type.is_relative:
            value -= addresses[section.index] + reloc.offset
        encoded = _encode(value, reloc.type)
        if encoded is None:
            target = reloc.symbol.name or obj.section(reloc.symbol.section or 0).name
            reason = f"{reloc.type.name} at {reloc.offset:#x}: {target}{reloc.addend:+#x} is out of reach"
            raise ModuleError(reason, section=section.name)
        content[reloc.offset : reloc.offset + len(encoded)] = encoded
    for site in obj.fentry_sites:
        if site.section == section.index:
            content[site.offset : site.offset + SITE_SIZE] = NOP5
    return LinkedSection(
        section.name, addresses[section.index], bytes(content), section.executable, section.writable
    )


def _encode(value: int, kind: RelocationType) -> bytes | None:
    """`value` as the relocation encodes it, None if the CPU would not read the same value back."""
    value %= _ADDRESSES
    if kind is RelocationType.R_X86_64_64:
        return value.to_bytes(8, "little")
    low = value % (1 << 32)
    extended = low if kind is RelocationType.R_X86_64_32 or low < 1 << 31 else low | (_ADDRESSES - (1 << 32))
    return low.to_bytes(4, "little") if extended == value else None
