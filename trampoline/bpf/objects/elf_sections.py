"""The BPF parts of an ELF file: code, data, maps, types. Found by section name and kind, checked, not yet resolved."""

from dataclasses import dataclass

from emu.elf.errors import ElfError
from emu.elf.reader import (
    Binding,
    ElfFile,
    ElfRelocation,
    ElfSection,
    ElfSymbol,
    SectionType,
    SymbolType,
    read_elf,
)
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.ext import BtfExt, read_btf_ext
from trampoline.bpf.btf.layout import with_places
from trampoline.bpf.errors import BtfError, BytecodeError, ObjectError
from trampoline.bpf.isa.codec import SLOT_SIZE, decode
from trampoline.bpf.isa.insn import Insn, places

_EM_BPF, _EM_NONE = 247, 0
_ET_REL = 1
_TEXT = ".text"
_DATA_SECTIONS = (".data", ".rodata", ".bss")
_REFUSED = {
    "maps": "map definitions of this old form are not supported: define maps in .maps, with BTF",
    ".addr_space.1": "global variables in an arena are not supported",
    ".struct_ops": "struct_ops are not supported",
    ".struct_ops.link": "struct_ops are not supported",
    ".jumptables": "jump tables are not supported",
}
_MAX_INSNS = 1 << 20
_MAX_DATA = 64 << 20
_RELOCATION_SIZE = 16


@dataclass(frozen=True, slots=True, eq=False)
class ObjectFunction:
    """A function of the object: its instructions as compiled, and its position in its section in slots."""

    name: str
    section: ElfSection
    start: int
    insns: tuple[Insn, ...]
    slots: int
    is_local: bool

    @property
    def is_entry(self) -> bool:
        """True for a program's entry function, False for a function that is only called."""
        return self.section.name != _TEXT and not self.is_local


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of an object. ``functions`` and ``data`` are in the file's order; relocations are by section index."""

    elf: ElfFile
    functions: tuple[ObjectFunction, ...]
    data: tuple[ElfSection, ...]
    maps: ElfSection | None
    license: str
    btf: Btf | None
    ext: BtfExt | None
    relocations: dict[int, tuple[ElfRelocation, ...]]

    def symbol(self, relocation: ElfRelocation) -> ElfSymbol:
        """The symbol that a relocation refers to."""
        return self.elf.symbols[relocation.symbol]

    def section(self, symbol: ElfSymbol) -> ElfSection | None:
        """The section that defines a symbol; None if undefined, absolute, or not a section of this file."""
        return self.elf.sections[symbol.section] if 0 < symbol.section < len(self.elf.sections) else None


def instruction_starts(functions: tuple[ObjectFunction, ...]) -> set[tuple[int, int]]:
    """(section, slot) of every instruction."""
    return {
        (function.section.index, function.start + at) for function in functions for at in places(function.insns)[:-1]
    }


def read_sources(source: object, name: str) -> Sources:
    """Read the parts of the object from a path or from bytes. Raises ObjectError."""
    try:
        elf = read_elf(source, name)  # type: ignore[arg-type]
    except ElfError as error:
        raise ObjectError(error.reason, section=error.section) from None
    if elf.machine not in (_EM_BPF, _EM_NONE):
        raise ObjectError(f"not BPF: the file is for machine {elf.machine}, BPF is {_EM_BPF}")
    if elf.type != _ET_REL:
        raise ObjectError("not a relocatable object, as clang -c makes it")
    found = {section.name: section for section in elf.sections if section.size or section.type == SectionType.NOBITS}
    for section in found.values():
        if reason := _REFUSED.get(section.name.removeprefix("?")):
            raise ObjectError(reason, section=section.name)
        if section.size > _MAX_DATA:
            raise ObjectError(f"more than {_MAX_DATA} bytes", section=section.name)
    functions = _functions(elf)
    btf = _btf(elf, found.get(".BTF"))
    ext = None
    if (raw := found.get(".BTF.ext")) is not None:
        if btf is None:
            raise ObjectError("refers to a missing .BTF section", section=".BTF.ext")
        ext = read_btf_ext(raw.content, btf)
    data = tuple(section for section in elf.sections if section.size and _is_data(section) and section.name != ".maps")
    if sum(section.size for section in data) > _MAX_DATA:
        raise ObjectError(f"more than {_MAX_DATA} bytes of global variables", section=data[-1].name)
    maps = found.get(".maps")
    relocations = _relocations(elf, {function.section.index for function in functions}, maps)
    return Sources(elf, functions, data, maps, _license(found.get("license")), btf, ext, relocations)


def _is_data(section: ElfSection) -> bool:
    if section.type not in (SectionType.PROGBITS, SectionType.NOBITS) or section.executable:
        return False
    return any(section.name == name or section.name.startswith(name + ".") for name in _DATA_SECTIONS)


def _functions(elf: ElfFile) -> tuple[ObjectFunction, ...]:
    functions = []
    total = 0
    for symbol in elf.symbols:
        if symbol.type != SymbolType.FUNC or not 0 < symbol.section < len(elf.sections):
            continue
        section = elf.sections[symbol.section]
        if not section.executable or section.type != SectionType.PROGBITS:
            raise ObjectError(f"the function {symbol.name} is not in a section of code", section=section.name)
        end = symbol.value + symbol.size
        if symbol.value % SLOT_SIZE or symbol.size % SLOT_SIZE or not symbol.size or end > section.size:
            reason = f"the function {symbol.name} is {symbol.size} bytes at {symbol.value:#x} of {section.size}"
            raise ObjectError(reason, section=section.name)
        # Few symbols share a position; without a limit many could have the same code decoded many times.
        total += symbol.size // SLOT_SIZE
        if total > _MAX_INSNS:
            raise ObjectError(f"functions of more than {_MAX_INSNS} slots", section=section.name)
        try:
            insns = decode(section.content[symbol.value : end])
        except BytecodeError as error:
            at = "" if error.slot is None else f" at slot {symbol.value // SLOT_SIZE + error.slot}"
            raise ObjectError(f"in {symbol.name}{at}: {error.reason}", section=section.name) from None
        is_local = symbol.binding == Binding.LOCAL
        slots = places(insns)[-1]
        functions.append(ObjectFunction(symbol.name, section, symbol.value // SLOT_SIZE, insns, slots, is_local))
    return tuple(sorted(functions, key=lambda function: (function.section.index, function.start, function.name)))


def _btf(elf: ElfFile, section: ElfSection | None) -> Btf | None:
    if section is None:
        return None
    try:
        return with_places(section.content, elf)
    except BtfError as error:
        raise ObjectError(str(error), section=".BTF") from None


def _license(section: ElfSection | None) -> str:
    if section is None:
        return ""
    text = section.content.partition(b"\0")[0]
    if not text.isascii() or len(text) > 127:
        raise ObjectError("not text of up to 127 bytes", section="license")
    return text.decode()


def _relocations(elf: ElfFile, code: set[int], maps: ElfSection | None) -> dict[int, tuple[ElfRelocation, ...]]:
    relocations: dict[int, list[ElfRelocation]] = {}
    for section in elf.sections:
        if section.type not in (SectionType.REL, SectionType.RELA):
            continue
        target = elf.sections[section.info] if section.info < len(elf.sections) else None
        if target is None:
            raise ObjectError(f"relocations of section {section.info}, which does not exist", section=section.name)
        if target.index not in code and target is not maps:
            continue  # relocations of debugging information and of BTF
        if section.type == SectionType.RELA:
            raise ObjectError("relocations with addends are not BPF's", section=section.name)
        linked = elf.sections[section.link] if section.link < len(elf.sections) else None
        if linked is None or linked.type != SectionType.SYMTAB:
            raise ObjectError("relocations without a symbol table", section=section.name)
        if section.size // _RELOCATION_SIZE > target.size // SLOT_SIZE:
            raise ObjectError(f"more relocations than {target.name} has room for", section=section.name)
        try:
            entries = elf.relocations(section)
        except ElfError as error:
            raise ObjectError(error.reason, section=error.section) from None
        relocations.setdefault(target.index, []).extend(entries)
    return {index: tuple(entries) for index, entries in relocations.items()}
