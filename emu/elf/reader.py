"""Reads 64-bit little-endian ELF as it stands, whatever machine it is for: sections, symbols, relocation entries.

Nothing is dropped and nothing is interpreted: `read_elf` is for those who know what the sections of a machine mean.
"""

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from emu.elf.errors import ElfError

if TYPE_CHECKING:
    import lief

MAX_OBJECT_SIZE = 64 << 20
"""Bytes of a file that is still read."""
MAX_SECTIONS = 1 << 16
"""Sections that a file may have; ELF itself numbers no more without an extension that nobody needs here."""
MAX_SYMBOLS = 1 << 20
"""Symbols that a file may have."""

SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 0x1, 0x2, 0x4

_REL = Struct("<QQ")
_RELA = Struct("<QQq")
_SYMBOL = Struct("<IBBHQQ")


class SectionType(IntEnum):
    """`sh_type`, as far as it is asked for."""

    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    NOBITS = 8
    REL = 9


class SymbolType(IntEnum):
    """The type in `st_info`."""

    NOTYPE = 0
    OBJECT = 1
    FUNC = 2
    SECTION = 3
    FILE = 4


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
        """Whether it holds code."""
        return bool(self.flags & SHF_EXECINSTR)


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
        """Whether it has to come from elsewhere."""
        return self.section == 0


@dataclass(frozen=True, slots=True)
class ElfRelocation:
    """An entry of a REL or RELA section: `symbol` is an index into the symbols, `addend` None where it has none."""

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

        Raises ElfError for a size that is no number of entries, and for a symbol that does not exist.
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


def read_elf(source: str | Path | bytes, name: str = "") -> ElfFile:
    """Read the file at the path `source`, or whose bytes it is.

    `name` is for messages; by default the file's own. Raises ElfError for what can't be read, is no 64-bit
    little-endian ELF, or has sections or symbols that reach beyond the file.
    """
    with object_bytes(source, name) as (raw, name), lief_binary(raw) as binary:
        return _elf_file(binary, raw, name)


@contextmanager
def object_bytes(source: str | Path | bytes, name: str) -> Iterator[tuple[bytes, str]]:
    """The bytes of the file at the path `source`, or `source` itself, and the name under which an ElfError of the
    block is raised: the one given, or the file's own.
    """
    if isinstance(source, bytes):
        raw, name = source, name or "object"
    else:
        name = name or Path(source).name
        raw = _read_file(Path(source), name)
    try:
        yield raw, name
    except ElfError as error:
        raise ElfError(error.reason, section=error.section, object_name=name) from None


def _read_file(path: Path, name: str) -> bytes:
    """The bytes of a regular file, one more than MAX_OBJECT_SIZE at most; raises ElfError under this name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ElfError("not a regular file", object_name=name)
        with path.open("rb") as file:
            return file.read(MAX_OBJECT_SIZE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ElfError(reason or str(error), object_name=name) from error


@contextmanager
def lief_binary(raw: bytes) -> "Iterator[lief.ELF.Binary]":
    """LIEF's view of these bytes: sections and symbols, no relocations. Raises ElfError where it has none.

    LIEF forgives damage, so whoever uses a part of the view checks it.
    """
    # Takes a quarter of a second, which only those pay who read objects.
    import lief

    if len(raw) > MAX_OBJECT_SIZE:
        raise ElfError(f"larger than {MAX_OBJECT_SIZE} bytes")
    if raw[:4] != b"\x7fELF":
        raise ElfError("not an ELF file")
    config = lief.ELF.ParserConfig()
    config.parse_relocations = config.parse_dyn_symbols = config.parse_symbol_versions = False
    config.parse_notes = config.parse_overlay = False
    level = lief.logging.get_level()
    lief.logging.set_level(lief.logging.LEVEL.OFF)
    try:
        with warnings.catch_warnings():
            # LIEF warns of each number that it has no name for; those that matter are checked by who uses them.
            warnings.simplefilter("ignore", RuntimeWarning)
            binary = lief.ELF.parse(raw, config)
            if binary is None:
                raise ElfError("damaged ELF header")
            yield binary
    finally:
        lief.logging.set_level(level)


def text_of(name: str | bytes, what: str) -> str:
    """A name as LIEF gives it; raises ElfError for one that is not printable text."""
    if isinstance(name, bytes) or not name.isprintable():
        raise ElfError(f"a {what} is not text: {name!r}")
    return name


def _elf_file(binary: "lief.ELF.Binary", raw: bytes, name: str) -> ElfFile:
    from lief import ELF

    header = binary.header
    if header.identity_class != ELF.Header.CLASS.ELF64 or header.identity_data != ELF.Header.ELF_DATA.LSB:
        raise ElfError("not 64-bit little-endian ELF")
    headers = list(binary.sections)
    if len(headers) != header.numberof_sections or len(headers) > MAX_SECTIONS:
        raise ElfError("damaged section headers, or a truncated file")
    # The numbers of the file: LIEF has its own for those of some machines.
    kind, machine = (int.from_bytes(raw[at : at + 2], "little") for at in (16, 18))
    # Sections lie side by side; where they overlap, a small file could claim any amount of memory.
    if sum(one.size for one in headers if one.type != ELF.Section.TYPE.NOBITS) > len(raw):
        raise ElfError("sections overlap, or the file is truncated")
    sections = tuple(_section(index, one, raw) for index, one in enumerate(headers))
    return ElfFile(name, kind, machine, sections, _symbols(sections))


def _section(index: int, header: "lief.ELF.Section", raw: bytes) -> ElfSection:
    name = text_of(header.name, "section name")
    # A type that LIEF has no name for is a bare number; those of some machines it marks above 32 bits.
    number = int(getattr(header.type, "value", header.type)) & 0xFFFFFFFF
    content = b""
    if number not in (0, SectionType.NOBITS):
        content = raw[header.file_offset : header.file_offset + header.size]
        if len(content) != header.size:
            raise ElfError("damaged, or the file is truncated", section=name)
    return ElfSection(
        index, name, number, header.flags, header.size, header.alignment, header.link, header.information, content
    )


def _symbols(sections: tuple[ElfSection, ...]) -> tuple[ElfSymbol, ...]:
    tables = [section for section in sections if section.type == SectionType.SYMTAB]
    if len(tables) != 1:
        raise ElfError(f"{len(tables)} symbol tables where there must be one")
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
        return text_of(strings.content[offset:end].decode(), "symbol name")
    except UnicodeDecodeError:
        raise ElfError(f"a symbol name is not text: {strings.content[offset:end]!r}", section=section) from None
