"""Reader of 64-bit little-endian ELF for any machine: sections, symbols, relocation entries.

The only user of LIEF, which reads the table of sections. Nothing is dropped or interpreted: the caller of `read_elf`
knows the meaning of a machine's sections.
"""

import stat
import warnings
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from emu.elf.errors import ElfError

MAX_OBJECT_SIZE = 64 << 20
"""Maximum size of a file in bytes."""
MAX_SECTIONS = 1 << 16
"""Maximum number of sections; more would need an extension of ELF, which is not supported."""
MAX_SYMBOLS = 1 << 20
"""Maximum number of symbols."""

SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS, SHF_COMPRESSED = 0x1, 0x2, 0x4, 0x400, 0x800
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2

_MAGIC = b"\x7fELF"
_CLASS64_LSB = b"\2\1"
_HEADER = Struct("<16sHHIQQQIHHHHHH")
_REL = Struct("<QQ")
_RELA = Struct("<QQq")
_SYMBOL = Struct("<IBBHQQ")


class SectionType(IntEnum):
    """`sh_type`, the values in use."""

    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    NOTE = 7
    NOBITS = 8
    REL = 9


class SymbolType(IntEnum):
    """The type in `st_info`."""

    NOTYPE = 0
    OBJECT = 1
    FUNC = 2
    SECTION = 3
    FILE = 4
    GNU_IFUNC = 10


class Binding(IntEnum):
    """The binding in `st_info`."""

    LOCAL = 0
    GLOBAL = 1
    WEAK = 2


@dataclass(frozen=True, slots=True)
class ElfSection:
    """A section header and its bytes: `content` is empty for NOBITS, whose `size` bytes are zero.

    `link` and `info` are the header's own; `type` is a `SectionType` where it is one.
    """

    index: int
    name: str
    type: int
    flags: int
    size: int
    alignment: int
    link: int
    info: int
    content: bytes

    @property
    def executable(self) -> bool:
        """True if it contains code."""
        return bool(self.flags & SHF_EXECINSTR)

    @property
    def writable(self) -> bool:
        """True if it is writable data."""
        return bool(self.flags & SHF_WRITE)


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """A symbol: `section` is its `st_shndx` (0 undefined, 0xfff1 absolute, 0xfff2 common), `value` bytes into it.

    `visibility` 0 is the default, 1 internal, 2 hidden.
    """

    name: str
    section: int
    value: int
    size: int
    type: int
    binding: int
    visibility: int

    @property
    def is_undefined(self) -> bool:
        """True if another file has to provide it."""
        return self.section == SHN_UNDEF


@dataclass(frozen=True, slots=True)
class ElfRelocation:
    """An entry of a REL or RELA section: `symbol` is an index into the symbols, `addend` None for REL."""

    offset: int
    type: int
    symbol: int
    addend: int | None


@dataclass(frozen=True, slots=True)
class ElfFile:
    """An ELF file: `type` and `machine` are the header's numbers; symbols keep their index."""

    name: str
    type: int
    machine: int
    sections: tuple[ElfSection, ...]
    symbols: tuple[ElfSymbol, ...]

    def relocations(self, section: ElfSection) -> tuple[ElfRelocation, ...]:
        """The entries of a REL or RELA section.

        Raises ElfError if the size is not a multiple of an entry's, and for a symbol that does not exist.
        """
        layout = _RELA if section.type == SectionType.RELA else _REL
        if len(section.content) % layout.size:
            raise ElfError("damaged relocations", section=section.name, object_name=self.name)
        entries = []
        for offset, info, *addend in layout.iter_unpack(section.content):
            if info >> 32 >= len(self.symbols):
                reason = f"the relocation at {offset:#x} has symbol {info >> 32} of {len(self.symbols)}"
                raise ElfError(reason, section=section.name, object_name=self.name)
            entries.append(ElfRelocation(offset, info & 0xFFFFFFFF, info >> 32, addend[0] if addend else None))
        return tuple(entries)


def read_elf(source: str | Path | bytes, name: str = "", *, symbols: bool = True) -> ElfFile:
    """Read the file at the path `source`, or from its bytes.

    `name` is for messages; by default the file's own. With `symbols` the file must have one symbol table; without, none
    is read. Raises ElfError for a file that can't be read, is not 64-bit little-endian ELF, or has sections or symbols
    that reach beyond its end.
    """
    if isinstance(source, bytes):
        raw, name = source, name or "object"
    else:
        name = name or Path(source).name
        raw = _read_file(Path(source), name)
    try:
        kind, machine, count, names = _header(raw)
        sections = _sections(raw, count, has_names=names != SHN_UNDEF)
        return ElfFile(name, kind, machine, sections, _symbols(sections) if symbols else ())
    except ElfError as error:
        raise ElfError(error.reason, section=error.section, object_name=name) from None


def _read_file(path: Path, name: str) -> bytes:
    """Up to MAX_OBJECT_SIZE + 1 bytes of a regular file; raises ElfError with this name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ElfError("not a regular file", object_name=name)
        with path.open("rb") as file:
            return file.read(MAX_OBJECT_SIZE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ElfError(reason or str(error), object_name=name) from error


def _header(raw: bytes) -> tuple[int, int, int, int]:
    """Type, machine, number of sections and index of the section of their names: fields of `Elf64_Ehdr`."""
    if len(raw) > MAX_OBJECT_SIZE:
        raise ElfError(f"larger than {MAX_OBJECT_SIZE} bytes")
    if raw[:4] != _MAGIC:
        raise ElfError("not an ELF file")
    if len(raw) < _HEADER.size:
        raise ElfError("damaged ELF header, or a truncated file")
    identity, kind, machine, *rest = _HEADER.unpack_from(raw)
    if not identity.startswith(_MAGIC + _CLASS64_LSB):
        raise ElfError("not 64-bit little-endian ELF")
    return kind, machine, rest[-2], rest[-1]


def _sections(raw: bytes, count: int, *, has_names: bool) -> tuple[ElfSection, ...]:
    """The sections, read by LIEF. LIEF accepts damaged files, so each value used is checked."""
    headers = _lief_sections(raw, has_names)
    if len(headers) != count or count > MAX_SECTIONS:
        raise ElfError("damaged section headers, or a truncated file")
    filled = [one for one in headers if one.type not in (0, SectionType.NOBITS)]
    for one in filled:
        if one.offset + one.size > len(raw):
            raise ElfError("damaged, or the file is truncated", section=one.name)
    # With overlapping sections a small file could claim any amount of memory.
    if sum(one.size for one in filled) > len(raw):
        raise ElfError("sections overlap, or the file is truncated")
    return tuple(
        ElfSection(
            index,
            one.name,
            one.type,
            one.flags,
            one.size,
            one.alignment,
            one.link,
            one.info,
            b"" if one.type in (0, SectionType.NOBITS) else raw[one.offset : one.offset + one.size],
        )
        for index, one in enumerate(headers)
    )


class _SectionHeader(NamedTuple):
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


def _lief_sections(raw: bytes, has_names: bool) -> list[_SectionHeader]:
    # Importing LIEF takes a quarter of a second: only opening an object does.
    import lief

    config = lief.ELF.ParserConfig()
    config.parse_relocations = config.parse_dyn_symbols = config.parse_symbol_versions = False
    config.parse_symtab_symbols = config.parse_notes = config.parse_overlay = False
    level = lief.logging.get_level()
    lief.logging.set_level(lief.logging.LEVEL.OFF)
    try:
        with warnings.catch_warnings():
            # LIEF warns of each number without a name.
            warnings.simplefilter("ignore", RuntimeWarning)
            binary = lief.ELF.parse(raw, config)
            if binary is None:
                raise ElfError("damaged ELF header")
            return [
                _SectionHeader(
                    # Without a section of names LIEF takes them from the first bytes of the file.
                    _text_of(one.name, "section name") if has_names else "",
                    # A type without a name in LIEF is a bare number; LIEF marks those of some machines above 32 bits.
                    int(getattr(one.type, "value", one.type)) & 0xFFFFFFFF,
                    one.flags,
                    one.file_offset,
                    one.size,
                    one.link,
                    one.information,
                    one.alignment,
                )
                for one in binary.sections
            ]
    finally:
        lief.logging.set_level(level)


def _text_of(name: str | bytes, what: str) -> str:
    """Check a name; raises ElfError if it is not printable text."""
    if isinstance(name, bytes) or not name.isprintable():
        raise ElfError(f"a {what} is not text: {name!r}")
    return name


def _symbols(sections: tuple[ElfSection, ...]) -> tuple[ElfSymbol, ...]:
    tables = [section for section in sections if section.type == SectionType.SYMTAB]
    if len(tables) != 1:
        raise ElfError(f"{len(tables)} symbol tables instead of one")
    (table,) = tables
    if len(table.content) % _SYMBOL.size:
        raise ElfError("damaged symbol table", section=table.name)
    if len(table.content) // _SYMBOL.size > MAX_SYMBOLS:
        raise ElfError(f"more than {MAX_SYMBOLS} symbols", section=table.name)
    strings = sections[table.link] if table.link < len(sections) else None
    if strings is None or strings.type != SectionType.STRTAB:
        raise ElfError("the symbol table has no strings", section=table.name)
    return tuple(
        ElfSymbol(_string(strings, at, table.name), section, value, size, info & 15, info >> 4, other & 3)
        for at, info, other, section, value, size in _SYMBOL.iter_unpack(table.content)
    )


def _string(strings: ElfSection, offset: int, section: str) -> str:
    end = strings.content.find(b"\0", offset)
    if end < 0:
        raise ElfError(f"a name at {offset:#x} reaches beyond the strings", section=section)
    try:
        return _text_of(strings.content[offset:end].decode(), "symbol name")
    except UnicodeDecodeError:
        raise ElfError(f"a symbol name is not text: {strings.content[offset:end]!r}", section=section) from None
