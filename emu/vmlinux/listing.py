"""Disassembly of a kernel's code with names for the addresses in it."""

import re
from collections.abc import Iterator

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.page_walk import PageTables

_TARGET = re.compile(r"0x[0-9a-f]{9,16}")


def listing(memory: PageTables, code: CodeNames, address: int) -> Iterator[str]:
    """The lines of the function or generated code at a guest address: offset, bytes, instruction.

    MissingPage, NotMapped where its bytes are not there.
    """
    start, end = code.span(address)
    decoder = Cs(CS_ARCH_X86, CS_MODE_64)
    content = memory.read(start, end - start)
    at = 0
    for place, size, mnemonic, operands in decoder.disasm_lite(content, start):
        text = f"{mnemonic} {operands}".rstrip()
        if mnemonic == "call" or mnemonic.startswith("j"):
            text = _TARGET.sub(lambda found: code.describe(int(found[0], 16)), text)
        yield f"{place - start:5x}: {content[at : at + size].hex():22} {text}"
        at = place - start + size
        if mnemonic in ("ret", "jmp") and not any(content[at:].strip(b"\xcc\0\x90")):
            return
