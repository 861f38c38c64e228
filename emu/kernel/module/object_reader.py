"""Reader of ELF relocatable objects, as made by `gcc -c -pg -mfentry`.

Keeps the parts that a kernel keeps when it loads a module: text, constants and data, with their symbols, relocations
and patch sites. An object has no prototypes: the user states them for traced functions.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from asm.encodings import ENDBR64, NOP5
from emu.elf.errors import ElfError
from emu.elf.reader import (
    MAX_OBJECT_SIZE,
    SHF_ALLOC,
    SHF_COMPRESSED,
    SHF_TLS,
    SHN_ABS,
    SHN_COMMON,
    Binding,
    ElfFile,
    ElfSection,
    ElfSymbol,
    SectionType,
    SymbolType,
    read_elf,
)
from emu.kernel.module.object_file import (
    FENTRY,
    FentrySite,
    ModuleError,
    ObjectFile,
    ObjectSymbol,
    Relocation,
    RelocationType,
    Section,
)
from emu.kernel.module.relocation import LinkedFunction, LinkedObject, LinkedSection, link_object
from emu.kernel.text.entry import SITE_SIZE

__all__ = [
    "MAX_OBJECT_SIZE",
    "FentrySite",
    "LinkedFunction",
    "LinkedObject",
    "LinkedSection",
    "ModuleError",
    "ObjectFile",
    "ObjectSymbol",
    "Relocation",
    "RelocationType",
    "Section",
    "link_object",
    "read_object",
]

MCOUNT_LOC = "__mcount_loc"
"""The section in which -mrecord-mcount records the patch sites."""

MAX_LOADED_SIZE = 64 << 20
"""Limit on the total bytes of all kept sections of an object, including .bss."""
MAX_ALIGNMENT = 2 << 20

_CALL = b"\xe8"
_TYPES = {int(kind): kind for kind in RelocationType}
_R_X86_64_NONE = 0
_EM_X86_64, _ET_REL = 62, 1
# Allocated, but not needed by code that runs: unwind tables (a kernel's linker script discards them) and patch sites.
_DROPPED = (".eh_frame", MCOUNT_LOC)


def read_object(source: str | Path | bytes, name: str = "") -> ObjectFile:
    """Read the relocatable x86-64 object at the path `source`, or from its bytes.

    `name` is for messages; by default the file's own. Raises ModuleError for a file that can't be read, is not such an
    object or is damaged, and for features that the kernel's code model does not use: other relocation types, TLS,
    common symbols, compressed sections.
    """
    try:
        elf = read_elf(source, name)
        name = elf.name
        return _ObjectReader(elf).read()
    except ElfError as error:
        where = error.object_name or name
        raise ModuleError(error.reason, section=error.section, object_name=where) from error.__cause__


class _ObjectReader:
    """Extracts the kept parts of an ELF file, and checks each value used."""

    def __init__(self, elf: ElfFile) -> None:
        if elf.machine != _EM_X86_64:
            raise ModuleError("not x86-64 machine code")
        if elf.type != _ET_REL:
            raise ModuleError("not a relocatable object, as gcc -c makes it")
        self.elf = elf
        self.sections = elf.sections
        self.kept = {section.index: section for section in elf.sections if self._is_kept(section)}
        if sum(section.size for section in self.kept.values()) > MAX_LOADED_SIZE:
            raise ModuleError(f"more than {MAX_LOADED_SIZE} bytes to load")
        self.symbols = [self._symbol(symbol) for symbol in elf.symbols]

    def read(self) -> ObjectFile:
        """The object."""
        relocations: dict[int, list[Relocation]] = {section.index: [] for section in self.sections}
        for section in self.sections:
            if section.type in (SectionType.RELA, SectionType.REL) and self._is_used(section.info):
                relocations[section.info] += self._relocations(section, self.sections[section.info].name)
        sections = tuple(self._section(section, tuple(relocations[index])) for index, section in self.kept.items())
        recorded = [
            self._recorded_place(reloc)
            for section in self.sections
            if section.name == MCOUNT_LOC
            for reloc in relocations[section.index]
        ]
        visible = tuple(symbol for symbol in self.symbols if symbol is not None and symbol.name)
        return ObjectFile(self.elf.name, sections, visible, _fentry_sites(sections, visible, recorded))

    @staticmethod
    def _is_kept(section: ElfSection) -> bool:
        if not section.flags & SHF_ALLOC or not section.size or section.name.startswith(_DROPPED):
            return False
        if section.type == SectionType.NOTE:
            return False
        if section.type not in (SectionType.PROGBITS, SectionType.NOBITS):
            raise ModuleError("a type of section that can't be loaded", section=section.name)
        if section.flags & (SHF_TLS | SHF_COMPRESSED):
            kind = "thread-local" if section.flags & SHF_TLS else "compressed"
            raise ModuleError(f"{kind} sections can't be loaded", section=section.name)
        return True

    def _is_used(self, index: int) -> bool:
        return index in self.kept or (index < len(self.sections) and self.sections[index].name == MCOUNT_LOC)

    @staticmethod
    def _section(section: ElfSection, relocations: tuple[Relocation, ...]) -> Section:
        name, alignment = section.name, section.alignment or 1
        if alignment.bit_count() != 1 or alignment > MAX_ALIGNMENT:
            raise ModuleError(f"alignment {alignment:#x} is not a power of two up to {MAX_ALIGNMENT:#x}", section=name)
        for reloc in relocations:
            if reloc.offset + reloc.type.size > len(section.content):
                raise ModuleError(f"a relocation at {reloc.offset:#x} reaches beyond the section", section=name)
        return Section(
            section.index,
            name,
            section.content,
            section.size,
            alignment,
            section.executable,
            section.writable,
            relocations,
        )

    def _symbol(self, symbol: ElfSymbol) -> ObjectSymbol | None:
        """The symbol, or None if it belongs to nothing that is kept."""
        name = symbol.name
        absolute = symbol.section == SHN_ABS and symbol.type != SymbolType.FILE
        if symbol.section == SHN_COMMON:
            raise ModuleError(f"{name} is a common symbol: compile with -fno-common")
        if symbol.type == SymbolType.GNU_IFUNC:
            raise ModuleError(f"{name} is an indirect function")
        section = self.kept.get(symbol.section)
        if section is None and not absolute and (not symbol.is_undefined or not name):
            return None
        if section is not None and symbol.value + symbol.size > section.size:
            raise ModuleError(f"{name or 'a symbol'} reaches beyond the section", section=section.name)
        return ObjectSymbol(
            name,
            section.index if section is not None else None,
            symbol.value,
            symbol.size,
            is_function=symbol.type == SymbolType.FUNC,
            is_global=symbol.binding in (Binding.GLOBAL, Binding.WEAK),
            is_weak=symbol.binding == Binding.WEAK,
            is_absolute=absolute,
        )

    def _relocations(self, section: ElfSection, target: str) -> Iterator[Relocation]:
        if section.type == SectionType.REL:
            raise ModuleError("relocations without addends are not x86-64's", section=target)
        if section.link >= len(self.sections) or self.sections[section.link].type != SectionType.SYMTAB:
            raise ModuleError("relocations without a symbol table", section=target)
        for entry in self.elf.relocations(section):
            if entry.type == _R_X86_64_NONE:
                continue
            if entry.type not in _TYPES:
                raise ModuleError(f"unsupported relocation type {entry.type} at {entry.offset:#x}", section=target)
            symbol = self.symbols[entry.symbol]
            if symbol is None:
                reason = f"the relocation at {entry.offset:#x} refers to a section or symbol that is not loaded"
                raise ModuleError(reason, section=target)
            assert entry.addend is not None
            yield Relocation(entry.offset, _TYPES[entry.type], symbol, entry.addend)

    def _recorded_place(self, reloc: Relocation) -> tuple[int, int]:
        if reloc.type != RelocationType.R_X86_64_64 or reloc.symbol.section is None:
            raise ModuleError(f"the entry at {reloc.offset:#x} is not the address of code here", section=MCOUNT_LOC)
        return reloc.symbol.section, reloc.symbol.offset + reloc.addend


def _fentry_sites(
    sections: Iterable[Section], symbols: Iterable[ObjectSymbol], recorded: Iterable[tuple[int, int]]
) -> tuple[FentrySite, ...]:
    """The patch sites: calls of `__fentry__`, and those that -mrecord-mcount recorded as (section, offset)."""
    by_index = {section.index: section for section in sections}
    called: set[tuple[int, int]] = set()
    for section in sections:
        for reloc in section.relocations:
            if reloc.symbol.name != FENTRY:
                continue
            opcode = section.content[reloc.offset - 1 : reloc.offset]
            if not reloc.type.is_relative or reloc.addend != -4 or opcode != _CALL:
                raise ModuleError(f"a use of {FENTRY} that is not a call, at {reloc.offset:#x}", section=section.name)
            called.add((section.index, reloc.offset - 1))
    starts: dict[tuple[int, int], ObjectSymbol] = {}
    for symbol in symbols:
        if symbol.is_function and symbol.section is not None:
            at = (symbol.section, symbol.offset)
            starts[at] = min(starts.get(at, symbol), symbol, key=lambda alias: (not alias.is_global, alias.name))
    found = []
    for index, offset in sorted(called.union(recorded)):
        section = by_index[index]
        code = section.content[offset : offset + SITE_SIZE] if offset >= 0 else b""
        if not section.executable or len(code) != SITE_SIZE or ((index, offset) not in called and code != NOP5):
            raise ModuleError(f"neither a call of {FENTRY} nor a nop5 at {offset:#x}", section=section.name)
        has_endbr = section.content[max(offset - len(ENDBR64), 0) : offset] == ENDBR64
        function = starts.get((index, offset - len(ENDBR64) if has_endbr else offset))
        if function is None:
            raise ModuleError(f"no function begins where one could be patched, at {offset:#x}", section=section.name)
        found.append(FentrySite(function, index, offset))
    return tuple(found)
