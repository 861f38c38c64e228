"""Kallsyms tables in bytes, in each layout that kernels have (scripts/kallsyms.c): fixtures for the finder."""

import struct
from collections.abc import Sequence
from typing import Literal


def _aligned(out: bytearray, alignment: int) -> None:
    out += bytes(-len(out) % alignment)


def kallsyms_tables(
    symbols: Sequence[tuple[str, int, str]],
    address: int,
    *,
    order: Literal["offsets first", "names first"] = "names first",
    form: Literal["absolute per-CPU", "base-relative", "entry-relative"] = "absolute per-CPU",
    alignment: int = 8,
    base: int = 0xFFFFFFFF81000000,
    before: bytes = b"",
) -> bytes:
    """Memory from guest ``address`` on with ``before`` and the tables; symbols are (name, address, type), rising.

    Tokens: every byte for itself, "bpf_" and "trampoline" too.
    """
    tokens = [bytes([code]) if code > 1 else b"" for code in range(256)]
    tokens[0], tokens[1] = b"bpf_", b"trampoline"
    for code in range(0x80, 256):
        tokens[code] = b"xx"

    def encode(text: str) -> bytes:
        raw = text.encode()
        return raw.replace(b"bpf_", b"\0").replace(b"trampoline", b"\1")

    names, markers = bytearray(), []
    for number, (name, _, letter) in enumerate(symbols):
        if number % 256 == 0:
            markers.append(len(names))
        coded = encode(letter + name)
        length = len(coded)
        names += bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
        names += coded
    index, table = [], bytearray()
    for token in tokens:
        index.append(len(table))
        table += token + b"\0"

    out = bytearray(before)
    _aligned(out, 8)

    def put_offsets() -> None:
        _aligned(out, alignment)
        here = address + len(out)
        for place, (_, value, _) in enumerate(symbols):
            if form == "entry-relative":
                offset = value - (here + 4 * place)
            elif form == "base-relative":
                offset = value - base
            else:
                offset = value if value < 1 << 31 else base - 1 - value
            out.extend(struct.pack("<I", offset & 0xFFFFFFFF))
        if form != "entry-relative":
            _aligned(out, 8)
            out.extend(struct.pack("<Q", base))

    if order == "offsets first":
        put_offsets()
    _aligned(out, alignment)
    out += struct.pack("<I", len(symbols))
    _aligned(out, alignment)
    out += names
    _aligned(out, alignment)
    out += struct.pack(f"<{len(markers)}I", *markers)
    _aligned(out, alignment)
    out += table
    _aligned(out, alignment)
    out += struct.pack("<256H", *index)
    if order == "names first":
        put_offsets()
    out += bytes(64)
    return bytes(out)
