"""Completes an object's BTF before loading, as libbpf does: clang leaves the offsets of variables to the linker."""

from struct import pack_into, unpack_from

from emu.elf.reader import Binding, ElfFile
from trampoline.bpf.btf.btf import Btf, BtfKind

_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN
_EXTERN_SECTIONS = (".kconfig", ".ksyms")


def with_places(raw: bytes, elf: ElfFile) -> Btf:
    """BTF with section sizes and variable offsets filled in from the symbols, and hidden functions made static.

    The verifier checks a hidden function together with its callers, as static ones.

    Raises BtfError for damaged BTF.
    """
    btf, words = Btf(raw), bytearray(raw)
    sections = {section.name: section for section in elf.sections if section.name and section.size}
    globals_ = {
        (symbol.section, symbol.name): symbol.value for symbol in elf.symbols if symbol.binding != Binding.LOCAL
    }
    hidden = {symbol.name for symbol in elf.symbols if symbol.visibility in _HIDDEN and symbol.section}
    for type_id in range(1, len(btf)):
        kind = btf.kind(type_id)
        if kind is BtfKind.FUNC and hidden:
            if btf.type(type_id).name in hidden and btf.linkage(type_id) == "global":
                at = btf.place(type_id) + 4
                (info,) = unpack_from("<I", words, at)
                pack_into("<I", words, at, info & ~0xFFFFFF)
        elif kind is BtfKind.DATASEC and (name := btf.type(type_id).name) in sections and name not in _EXTERN_SECTIONS:
            section, at = sections[name], btf.place(type_id)
            entries = []
            for variable in btf.variables(type_id):
                key = section.index, btf.type(variable.type_id).name
                # A static variable's offset was known to the compiler.
                entries.append((globals_.get(key, variable.offset), variable.type_id, variable.size))
            pack_into("<I", words, at + 8, section.size)
            for index, (offset, variable_id, size) in enumerate(sorted(entries)):
                pack_into("<3I", words, at + 12 + 12 * index, variable_id, offset & 0xFFFFFFFF, size)
    return Btf(bytes(words))
