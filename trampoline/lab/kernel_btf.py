"""An object's BTF as a kernel takes it, and the records that point into it (libbpf's ``bpf_object__sanitize_btf``)."""

import struct

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.program import BpfProgram

_EXTERN_SECTIONS = (".ksyms", ".kconfig")
_EXTERN, _GLOBAL = 2, 1
_COLUMN_BITS = 10
_HEADER_SIZE = 24


def loadable(btf: Btf) -> bytes:
    """The BTF for BPF_BTF_LOAD: a kernel knows no extern variables and functions, nor the sections of these.

    Extern functions become typedefs, variables global numbers, their sections structs: no type id changes.
    """
    raw = bytearray(btf.raw)
    number = next(btf.of_kind(BtfKind.INT), 0)
    for type_id in range(1, len(btf)):
        kind, at = btf.kind(type_id), btf.place(type_id) - btf.place(1) + _HEADER_SIZE
        if kind is BtfKind.FUNC:
            (info,) = struct.unpack_from("<I", raw, at + 4)
            if info & 0xFFFF == _EXTERN:
                struct.pack_into("<I", raw, at + 4, BtfKind.TYPEDEF << 24)
        elif kind is BtfKind.VAR:
            if struct.unpack_from("<I", raw, at + 12)[0] == _EXTERN:
                struct.pack_into("<II", raw, at + 8, number, _GLOBAL)
        elif kind is BtfKind.DATASEC and btf.type(type_id).name in _EXTERN_SECTIONS and number:
            size, count = btf.type(number).size, len(btf.variables(type_id))
            struct.pack_into("<III", raw, at, 0, BtfKind.STRUCT << 24 | count, size * count)
            for index in range(count):
                struct.pack_into("<III", raw, at + 12 + 12 * index, 0, number, 8 * size * index)
    return bytes(raw)


def func_info(program: BpfProgram) -> bytes:
    """``struct bpf_func_info`` of each function."""
    return b"".join(struct.pack("<II", info.slot, info.type_id) for info in program.funcs)


def line_info(program: BpfProgram, raw: bytes) -> bytes:
    """``struct bpf_line_info`` of each line whose texts are in ``raw``, the BTF that was loaded."""
    header, _types, _size, strings_at, strings_size = struct.unpack_from("<IIIII", raw, 4)
    strings = raw[header + strings_at : header + strings_at + strings_size]
    known: dict[str, int] = {}

    def offset(text: str) -> int:
        if text not in known:
            known[text] = strings.find(b"\0" + text.encode() + b"\0") + 1 if text else 0
        return known[text]

    return b"".join(
        struct.pack("<IIII", line.slot, offset(line.file), offset(line.text), line.line << _COLUMN_BITS | line.column)
        for line in program.lines
    )
