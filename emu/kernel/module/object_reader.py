"""Reads an ELF relocatable object, as made by `gcc -c -pg -mfentry`.

Kept is what a kernel would keep when it loads a module: text, constants and data, with their symbols, relocations and
patch sites. Prototypes are not in an object: who traces a function states its prototype.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from asm.encodings import ENDBR64, NOP5
from emu.elf.errors import ElfError
from emu.elf.reader import MAX_OBJECT_SIZE, lief_binary, object_bytes, text_of
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

if TYPE_CHECKING:
    import lief

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
"""The section in which -mrecord-mcount notes the patch sites."""

MAX_LOADED_SIZE = 64 << 20
"""Bytes that all kept sections of an object may have, .bss included."""
MAX_ALIGNMENT = 2 << 20

_CALL = b"\xe8"
_RELA = Struct("<QQq")
_SYMBOL_SIZE = 24
_TYPES = {int(kind): kind for kind in RelocationType}
_R_X86_64_NONE = 0

_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS, _SHF_COMPRESSED = 0x1, 0x2, 0x4, 0x400, 0x800
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
# Allocated, but of no use to code that runs: unwind tables (a kernel's linker script discards them) and patch sites.
_DROPPED = (".eh_frame", MCOUNT_LOC)


def read_object(source: str | Path | bytes, name: str = "") -> ObjectFile:
    """Read the relocatable x86-64 object at the path `source`, or whose bytes it is.

    `name` is for messages; by default the file's own. Raises ModuleError for a file that can't be read, that is no such
    object or a damaged one, and for what the kernel's code model has no use for: other relocation types, TLS, common
    symbols, compressed sections.
    """
    try:
        with object_bytes(source, name) as (raw, name), lief_binary(raw) as binary:
            return _Reader(binary).read(name)
    except ElfError as error:
        raise ModuleError(error.reason, section=error.section, object_name=error.object_name) from error.__cause__


class _Reader:
    """Takes out of LIEF's view of an object what is kept. LIEF forgives damage, so each thing used is checked here."""

    def __init__(self, binary: "lief.ELF.Binary") -> None:
        from lief import ELF

        self.types = ELF.Section.TYPE
        self.symbol_types = ELF.Symbol.TYPE
        self.bindings = ELF.Symbol.BINDING
        header = binary.header
        if header.identity_class != ELF.Header.CLASS.ELF64 or header.identity_data != ELF.Header.ELF_DATA.LSB:
            raise ModuleError("not 64-bit little-endian ELF")
        if header.machine_type != ELF.ARCH.X86_64:
            raise ModuleError("not x86-64 machine code")
        if header.file_type != ELF.Header.FILE_TYPE.REL:
            raise ModuleError("not a relocatable object, as gcc -c makes it")
        self.headers = list(binary.sections)
        if len(self.headers) != header.numberof_sections:
            raise ModuleError("damaged section headers, or a truncated file")
        self.names = [text_of(raw.name, "section name") for raw in self.headers]
        self.kept = {index: raw for index, raw in enumerate(self.headers) if self._is_kept(index)}
        if sum(raw.size for raw in self.kept.values()) > MAX_LOADED_SIZE:
            raise ModuleError(f"more than {MAX_LOADED_SIZE} bytes to load")
        self.symtab = self._only_symtab()
        self.symbols = [self._symbol(raw) for raw in binary.symtab_symbols]
        if len(self.symbols) != self.headers[self.symtab].size // _SYMBOL_SIZE:
            raise ModuleError("damaged symbol table", section=self.names[self.symtab])

    def read(self, name: str) -> ObjectFile:
        """The object under this name."""
        relocations: dict[int, list[Relocation]] = {index: [] for index in range(len(self.headers))}
        for index, raw in enumerate(self.headers):
            if raw.type in (self.types.RELA, self.types.REL) and self._is_used(raw.information):
                relocations[raw.information] += self._relocations(index, raw.information)
        sections = tuple(self._section(index, tuple(relocations[index])) for index in self.kept)
        recorded = [
            self._recorded_place(reloc)
            for index, section_name in enumerate(self.names)
            if section_name == MCOUNT_LOC
            for reloc in relocations[index]
        ]
        visible = tuple(symbol for symbol in self.symbols if symbol is not None and symbol.name)
        return ObjectFile(name, sections, visible, _fentry_sites(sections, visible, recorded))

    def _is_kept(self, index: int) -> bool:
        raw, name = self.headers[index], self.names[index]
        if not raw.flags & _SHF_ALLOC or not raw.size or name.startswith(_DROPPED) or raw.type == self.types.NOTE:
            return False
        if raw.type not in (self.types.PROGBITS, self.types.NOBITS):
            raise ModuleError("a type of section that can't be loaded", section=name)
        if raw.flags & (_SHF_TLS | _SHF_COMPRESSED):
            kind = "thread-local" if raw.flags & _SHF_TLS else "compressed"
            raise ModuleError(f"{kind} sections can't be loaded", section=name)
        return True

    def _is_used(self, index: int) -> bool:
        return index in self.kept or (index < len(self.names) and self.names[index] == MCOUNT_LOC)

    def _only_symtab(self) -> int:
        tables = [index for index, raw in enumerate(self.headers) if raw.type == self.types.SYMTAB]
        if len(tables) != 1:
            raise ModuleError(f"{len(tables)} symbol tables where there must be one")
        self._content(tables[0], entry_size=_SYMBOL_SIZE)
        return tables[0]

    def _content(self, index: int, *, entry_size: int = 1) -> bytes:
        raw = self.headers[index]
        content = bytes(raw.content)
        if len(content) != raw.size or raw.size % entry_size:
            raise ModuleError("damaged, or the file is truncated", section=self.names[index])
        return content

    def _section(self, index: int, relocations: tuple[Relocation, ...]) -> Section:
        raw, name = self.headers[index], self.names[index]
        alignment = raw.alignment or 1
        if alignment.bit_count() != 1 or alignment > MAX_ALIGNMENT:
            raise ModuleError(f"alignment {alignment:#x} is no power of two up to {MAX_ALIGNMENT:#x}", section=name)
        content = b"" if raw.type == self.types.NOBITS else self._content(index)
        for reloc in relocations:
            if reloc.offset + reloc.type.size > len(content):
                raise ModuleError(f"a relocation at {reloc.offset:#x} reaches beyond the section", section=name)
        executable, writable = bool(raw.flags & _SHF_EXECINSTR), bool(raw.flags & _SHF_WRITE)
        return Section(index, name, content, raw.size, alignment, executable, writable, relocations)

    def _symbol(self, raw: "lief.ELF.Symbol") -> ObjectSymbol | None:
        """The symbol, or None if it stands for nothing that is kept."""
        name = text_of(raw.name, "symbol name")
        absolute = raw.shndx == _SHN_ABS and raw.type != self.symbol_types.FILE
        if raw.shndx == _SHN_COMMON:
            raise ModuleError(f"{name} is a common symbol: compile with -fno-common")
        if raw.type == self.symbol_types.GNU_IFUNC:
            raise ModuleError(f"{name} is an indirect function")
        section = raw.shndx if raw.shndx in self.kept else None
        if section is None and not absolute and (raw.shndx != _SHN_UNDEF or not name):
            return None
        if section is not None and raw.value + raw.size > self.headers[section].size:
            raise ModuleError(f"{name or 'a symbol'} reaches beyond the section", section=self.names[section])
        return ObjectSymbol(
            name,
            section,
            raw.value,
            raw.size,
            is_function=raw.type == self.symbol_types.FUNC,
            is_global=raw.binding in (self.bindings.GLOBAL, self.bindings.WEAK),
            is_weak=raw.binding == self.bindings.WEAK,
            is_absolute=absolute,
        )

    def _relocations(self, index: int, target: int) -> Iterator[Relocation]:
        name = self.names[target]
        if self.headers[index].type == self.types.REL:
            raise ModuleError("relocations without addends are not x86-64's", section=name)
        if self.headers[index].link != self.symtab:
            raise ModuleError("relocations without a symbol table", section=name)
        for offset, info, addend in _RELA.iter_unpack(self._content(index, entry_size=_RELA.size)):
            number, symbol_index = info & 0xFFFFFFFF, info >> 32
            if number == _R_X86_64_NONE:
                continue
            if number not in _TYPES:
                raise ModuleError(f"unsupported relocation type {number} at {offset:#x}", section=name)
            symbol = self.symbols[symbol_index] if symbol_index < len(self.symbols) else None
            if symbol is None:
                raise ModuleError(f"the relocation at {offset:#x} refers to nothing that is loaded", section=name)
            yield Relocation(offset, _TYPES[number], symbol, addend)

    def _recorded_place(self, reloc: Relocation) -> tuple[int, int]:
        if reloc.type != RelocationType.R_X86_64_64 or reloc.symbol.section is None:
            raise ModuleError(f"the entry at {reloc.offset:#x} is not the address of code here", section=MCOUNT_LOC)
        return reloc.symbol.section, reloc.symbol.offset + reloc.addend


def _fentry_sites(
    sections: Iterable[Section], symbols: Iterable[ObjectSymbol], recorded: Iterable[tuple[int, int]]
) -> tuple[FentrySite, ...]:
    """The patch sites: where `__fentry__` is called, and those that -mrecord-mcount recorded as (section, offset)."""
    by_index = {section.index: section for section in sections}
    called: set[tuple[int, int]] = set()
    for section in sections:
        for reloc in section.relocations:
            if reloc.symbol.name != FENTRY:
                continue
            opcode = section.content[reloc.offset - 1 : reloc.offset]
            if not reloc.type.is_relative or reloc.addend != -4 or opcode != _CALL:
                raise ModuleError(f"no call, but a use of {FENTRY} at {reloc.offset:#x}", section=section.name)
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
