"""Relocatable ELF objects written byte by byte: as much as a BPF object needs."""

import struct

from trampoline.bpf.isa import encode, parse

PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL = 1, 2, 3, 4, 8, 9
WRITE, ALLOC, EXEC = 1, 2, 4
NOTYPE, OBJECT, FUNC, SECTION = 0, 1, 2, 3
LOCAL, GLOBAL, WEAK = 0, 1, 2


class ElfWriter:
    """An object: sections and symbols in the order of the calls, each of which gives an index."""

    def __init__(self, machine=247, kind=1):
        self.machine, self.kind = machine, kind
        self.sections = [("", 0, 0, b"", 0, 0, 0)]
        self.symbols = [(b"", 0, 0, 0, 0, 0)]
        self.relocations = {}

    def section(self, name, content=b"", kind=PROGBITS, flags=ALLOC, size=None, info=0, link=0):
        self.sections.append((name, kind, flags, content, len(content) if size is None else size, link, info))
        return len(self.sections) - 1

    def code(self, name, *functions, local=False):
        """A section of functions, (name, text or bytes) each; gives its index."""
        index = self.section(name, flags=ALLOC | EXEC)
        content = b""
        for function, body in functions:
            body = encode(parse(body)) if isinstance(body, str) else body
            self.symbol(function, index, len(content), len(body), FUNC, LOCAL if local else GLOBAL)
            content += body
        self.sections[index] = (name, PROGBITS, ALLOC | EXEC, content, len(content), 0, 0)
        return index

    def symbol(self, name, section=0, value=0, size=0, kind=NOTYPE, binding=GLOBAL, visibility=0):
        self.symbols.append((name.encode(), binding << 4 | kind, visibility, section, value, size))
        return len(self.symbols) - 1

    def relocate(self, section, offset, symbol, kind):
        self.relocations.setdefault(section, []).append((offset, symbol << 32 | kind))

    def bytes(self):
        sections = list(self.sections)
        symtab, strtab = len(sections) + len(self.relocations), len(sections) + len(self.relocations) + 1
        for target, entries in self.relocations.items():
            content = b"".join(struct.pack("<QQ", *entry) for entry in entries)
            sections.append((".rel" + sections[target][0], REL, 0, content, len(content), symtab, target))
        names, table = b"\0", b""
        for name, info, visibility, section, value, size in self.symbols:
            table += struct.pack("<IBBHQQ", len(names) if name else 0, info, visibility, section, value, size)
            names += name + b"\0" if name else b""
        sections.append((".symtab", SYMTAB, 0, table, len(table), strtab, 1))
        sections.append((".strtab", STRTAB, 0, names, len(names), 0, 0))
        texts = b"\0"
        starts = []
        for name, *_ in [*sections, (".shstrtab",)]:
            starts.append(len(texts) if name else 0)
            texts += name.encode() + b"\0" if name else b""
        sections.append((".shstrtab", STRTAB, 0, texts, len(texts), 0, 0))
        body, headers = b"", b""
        for index, (_, kind, flags, content, size, link, info) in enumerate(sections):
            body += bytes(-len(body) % 8)
            entry = {SYMTAB: 24, REL: 16}.get(kind, 0)
            align = 8 if index else 0
            headers += struct.pack(
                "<IIQQQQIIQQ", starts[index], kind, flags, 0, 64 + len(body), size, link, info, align, entry
            )
            body += content
        body += bytes(-len(body) % 8)
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        header = struct.pack(
            "<HHIQQQIHHHHHH",
            self.kind, self.machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections), len(sections) - 1,
        )  # fmt: skip
        return ident + header + body + headers
