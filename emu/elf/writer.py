"""Writer of ELF files for debuggers: sections, symbols with sizes, debugging sections, but no code.

Chapter 4 of the System V ABI; the code itself is in the guest's memory, where gdb reads it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_EHDR, _SHDR, _SYM = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_ET_EXEC, _EM_X86_64 = 2, 62
_PROGBITS, _SYMTAB, _STRTAB, _NOBITS = 1, 2, 3, 8
_ALLOC, _EXECINSTR = 2, 4
_ABSOLUTE = 0xFFF1
_GLOBAL = 1 << 4
_OBJECT, _FUNC = 1, 2


@dataclass(frozen=True, slots=True)
class CodeRange:
    """Address range of a section of code."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewElfSymbol:
    """A symbol of ``size`` bytes: a function in one of the code ranges, or else data."""

    name: str
    address: int
    size: int


def elf_file(code: Sequence[CodeRange], symbols: Sequence[NewElfSymbol], debug: dict[str, bytes]) -> bytes:
    """The file's bytes; ``debug``: sections by name."""
    names = _Strings()
    strings = _Strings()
    table = [_SYM.pack(0, 0, 0, 0, 0, 0)]
    for symbol in symbols:
        section = next((n for n, part in enumerate(code, 1) if part.start <= symbol.address < part.end), _ABSOLUTE)
        kind = _OBJECT if section == _ABSOLUTE else _FUNC
        offset = strings.add(symbol.name)
        table.append(_SYM.pack(offset, _GLOBAL | kind, 0, section, symbol.address, symbol.size))
    first_debug = 1 + len(code)
    symtab = first_debug + len(debug)
    contents = [*debug.values(), b"".join(table), strings.content]
    headers = [_SHDR.pack(*[0] * 10)]
    at = _EHDR.size
    for part in code:
        size = part.end - part.start
        headers.append(
            _SHDR.pack(names.add(part.name), _NOBITS, _ALLOC | _EXECINSTR, part.start, at, size, 0, 0, 16, 0)
        )
    body = bytearray()
    for number, name in enumerate([*debug, ".symtab", ".strtab", ".shstrtab"], first_debug):
        label = names.add(name)
        content = names.content if name == ".shstrtab" else contents[number - first_debug]
        body += bytes(-(at + len(body)) % 8)
        where = at + len(body)
        body += content
        if number == symtab:
            fields = (_SYMTAB, 0, 0, where, len(content), symtab + 1, 1, 8, _SYM.size)
        else:
            fields = (_PROGBITS if number < symtab else _STRTAB, 0, 0, where, len(content), 0, 0, 1, 0)
        headers.append(_SHDR.pack(label, *fields))
    body += bytes(-(at + len(body)) % 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    # gdb needs the entry point to be in a section.
    entry = code[0].start if code else 0
    ehdr = _EHDR.pack(
        ident, _ET_EXEC, _EM_X86_64, 1, entry, 0, at + len(body), 0, _EHDR.size, 0, 0, _SHDR.size, len(headers),
        len(headers) - 1,
    )  # fmt: skip
    return ehdr + bytes(body) + b"".join(headers)


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self._bytes = bytearray(b"\0")

    @property
    def content(self) -> bytes:
        """The whole table."""
        return bytes(self._bytes)

    def add(self, text: str) -> int:
        """Add a string; returns its offset."""
        offset = len(self._bytes)
        self._bytes += text.encode() + b"\0"
        return offset
