"""One statement with its numbers to bytes: own table first, else Keystone; every encoding is decoded and compared."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from asm.encodings import ENDBR64, INT3, MASK, NOPS
from asm.engines import detailed_capstone, keystone
from asm.operands import number_text
from asm.registers import NUMBER_32, NUMBER_64
from asm.roundtrip import Meant, MeantMemory, agrees, fits, operand_text, signed, signed_immediates

if TYPE_CHECKING:
    from capstone import CsInsn

CACHE_SIZE = 16384
# Stands for a displacement that is written later: needs 32 bits, and no instruction of ours means it.
PLACEHOLDER = 0x11223344
_PLACEHOLDER_BYTES = struct.pack("<i", PLACEHOLDER)
_PLACEHOLDER_TEXT = f"rip + {PLACEHOLDER:#x}"
_NO_INDEX_NO_BASE = 0x25


@dataclass(slots=True)
class Encoded:
    """An encoding that holds at any address: `text` is its canonical disassembly. Shared, never changed.

    `rip_at` is the offset of the displacement of a rip-relative operand, which stays to be written; -1 without one.
    """

    code: bytes
    mnemonic: str
    operands: str
    text: str
    rip_at: int = -1

    def operands_with_rip(self, target: str) -> str:
        """The operands with `target` in place of the rip-relative displacement."""
        return self.operands.replace(_PLACEHOLDER_TEXT, target)


class Request(NamedTuple):
    """An encoding that is wanted: what is meant, and whether its displacement has to take 32 bits."""

    meant: Meant
    long_form: bool


class EncodeFailure(Exception):
    """Why a request has no encoding; with `got` and `code` if something else came out."""

    def __init__(self, reason: str, got: str = "", code: bytes = b"") -> None:
        super().__init__(reason, got, code)
        self.reason = reason
        self.got = got
        self.code = code


def _fixed(code: bytes, mnemonic: str, operands: str = "") -> Encoded:
    return Encoded(code, mnemonic, operands, f"{mnemonic} {operands}".rstrip())


_NOP_OPERANDS = {
    3: "dword ptr [rax]",
    4: "dword ptr [rax]",
    5: "dword ptr [rax + rax]",
    6: "word ptr [rax + rax]",
    7: "dword ptr [rax]",
    8: "dword ptr [rax + rax]",
    9: "dword ptr cs:[rax + rax]",
    10: "word ptr cs:[rax + rax]",
    11: "word ptr cs:[rax + rax]",
}
NOP_ENCODINGS = {size: _fixed(code, "nop", _NOP_OPERANDS.get(size, "")) for size, code in NOPS.items()}
_TABLE = {
    "endbr64": _fixed(ENDBR64, "endbr64"),
    "int3": _fixed(INT3, "int3"),
    "nop": NOP_ENCODINGS[1],
    # Keystone knows the first name only.
    "sysret": _fixed(b"\x48\x0f\x07", "sysretq"),
    "sysretq": _fixed(b"\x48\x0f\x07", "sysretq"),
    # Keystone takes the names without q for the 16-bit forms.
    "pushf": _fixed(b"\x9c", "pushfq"),
    "popf": _fixed(b"\x9d", "popfq"),
    **{f"nop{size}": encoded for size, encoded in NOP_ENCODINGS.items()},
}
# As the kernel's nops print; the plain encoding of the same text is shorter and none of the kernel's.
_NOP_TEXTS = {
    (False, "dword ptr [rax + rax]"): NOP_ENCODINGS[5],
    (False, "word ptr [rax + rax]"): NOP_ENCODINGS[6],
    (True, "dword ptr [rax]"): NOP_ENCODINGS[7],
    (True, "dword ptr [rax + rax]"): NOP_ENCODINGS[8],
}

_cache: dict[Request, Encoded] = {}


def remember(cache: dict[Any, Any], key: object, value: object, size: int = CACHE_SIZE) -> None:
    """Keeps `value` in a bounded cache; a full one loses its older half."""
    if len(cache) >= size:
        for old in list(cache)[: size // 2]:
            cache.pop(old, None)
    cache[key] = value


def from_table(request: Request) -> Encoded | None:
    """The encoding of what is never left to Keystone, or None. Raises EncodeFailure."""
    mnemonic, operands = request.meant
    if not operands:
        return None if request.long_form else _TABLE.get(mnemonic)
    if mnemonic in ("mov", "movabs"):
        match operands:
            case (str(register), int(value)):
                return mov_number(mnemonic, register, value)
        if mnemonic == "movabs":
            raise EncodeFailure("movabs takes a 64-bit register and a number")
    elif mnemonic == "push" and not request.long_form:
        match operands:
            case (int(value),):
                return _push_number(value)
    elif mnemonic == "nop" and len(operands) == 1:
        return _NOP_TEXTS.get((request.long_form, operand_text(operands[0])))
    return None


def mov_number(mnemonic: str, register: str, value: int) -> Encoded | None:
    """`mov r64, imm` as 48 c7 if 32 sign-extended bits hold the number, else as movabs; `mov r32, imm` as b8."""
    if (number := NUMBER_64.get(register)) is not None:
        value &= MASK
        operands = f"{register}, {number_text(value)}"
        high = number >> 3
        if mnemonic == "mov" and -(1 << 31) <= (low := signed(value, 64)) < (1 << 31):
            return _fixed(struct.pack("<BBBi", 0x48 | high, 0xC7, 0xC0 | number & 7, low), "mov", operands)
        return _fixed(struct.pack("<BBQ", 0x48 | high, 0xB8 | number & 7, value), "movabs", operands)
    if mnemonic == "movabs":
        raise EncodeFailure("movabs takes a 64-bit register and a number")
    if (number := NUMBER_32.get(register)) is not None:
        if not fits(value, 32):
            raise EncodeFailure(f"{value:#x} does not fit {register}")
        value &= (1 << 32) - 1
        code = struct.pack("<BI", 0xB8 | number & 7, value)
        return _fixed(b"\x41" + code if number >> 3 else code, "mov", f"{register}, {number_text(value)}")
    return None


def _push_number(value: int) -> Encoded | None:
    """`push imm` as 6a if 8 sign-extended bits hold the number, else as 68: Keystone takes 0xff80 to 0xffff for
    16-bit numbers, which it then extends.
    """
    if not fits(value, 64):
        return None
    number = signed(value, 64)
    if -(1 << 7) <= number < 1 << 7:
        return _fixed(struct.pack("<Bb", 0x6A, number), "push", number_text(number))
    if -(1 << 31) <= number < 1 << 31:
        return _fixed(struct.pack("<Bi", 0x68, number), "push", number_text(number))
    return None


def cached(request: Request) -> Encoded | None:
    """The encoding if it is known already."""
    return _cache.get(request)


def encode_all(requests: Iterable[Request]) -> dict[Request, Encoded | EncodeFailure]:
    """Encodes what is not in the cache, with one call of Keystone if all of it is right."""
    wanted = list(dict.fromkeys(requests))
    results: dict[Request, Encoded | EncodeFailure] = {}
    codes = _encode_together(wanted) if len(wanted) > 1 else None
    for number, request in enumerate(wanted):
        try:
            encoded = _finish(request, codes[number] if codes else _encode_alone(request))
        except EncodeFailure as failure:
            results[request] = failure
        else:
            remember(_cache, request, encoded)
            results[request] = encoded
    return results


def _source(request: Request) -> str:
    """What Keystone is asked for: no symbols, no decimal numbers above 9, and displacements that it can't get wrong."""
    mnemonic, operands = request.meant
    operands = signed_immediates(operands, mnemonic)
    if mnemonic == "nop":
        match operands:
            case (MeantMemory(size=2 | 4 | 8 as size) as memory,):
                # Keystone's own opcode for it is wrong; the operand is encoded as in this store.
                return _source(Request(Meant("mov", (memory, {2: "ax", 4: "eax", 8: "rax"}[size])), request.long_form))
        raise EncodeFailure("nop takes a word, dword or qword memory operand, or nothing")
    texts = []
    for operand in operands:
        if isinstance(operand, MeantMemory):
            if _absolute(operand):
                # Without a base Keystone would take it relative to rip: the SIB byte is rewritten afterwards.
                operand = operand._replace(indexed="rax", scale=2, displacement=PLACEHOLDER)
            elif request.long_form:
                operand = operand._replace(displacement=PLACEHOLDER)
        texts.append(operand_text(operand))
    return f"{mnemonic} {', '.join(texts)}".rstrip()


def _absolute(memory: MeantMemory) -> bool:
    return not memory.base and not memory.indexed


def _assemble(source: str) -> bytes:
    from keystone import KsError

    try:
        code, _ = keystone().asm(source, 0, as_bytes=True)
    except KsError as error:
        raise EncodeFailure(_reason(error, source)) from None
    return code or b""


def _reason(error: Exception, source: str) -> str:
    from keystone import KS_ERR_ASM_MNEMONICFAIL

    mnemonic = source.split(" ")[0]
    if getattr(error, "errno", None) == KS_ERR_ASM_MNEMONICFAIL:
        return f"unknown instruction {mnemonic!r}"
    if re.search(r"(^|[ :])\[", source) and "ptr " not in source:
        return f"{source!r} has no encoding; does its memory operand lack a size such as 'qword ptr'?"
    return f"{source!r} has no encoding"


def _encode_alone(request: Request) -> bytes:
    return _assemble(_source(request))


def _encode_together(requests: list[Request]) -> list[bytes] | None:
    """The code of each request out of one call, or None if they have to be told apart one at a time."""
    try:
        code = _assemble("\n".join(map(_source, requests)))
    except EncodeFailure:
        return None
    codes = []
    offset = 0
    for insn in detailed_capstone().disasm(code, 0):
        codes.append(code[offset : offset + insn.size])
        offset += insn.size
    return codes if len(codes) == len(requests) and offset == len(code) else None


def _decode_one(code: bytes) -> CsInsn | None:
    insns = list(detailed_capstone().disasm(code, 0))
    return insns[0] if len(insns) == 1 and insns[0].size == len(code) else None


def _finish(request: Request, code: bytes) -> Encoded:
    """Writes the displacements that Keystone was not told, decodes the result and compares it with what is meant."""
    mnemonic, operands = request.meant
    memory = next((operand for operand in operands if isinstance(operand, MeantMemory)), None)
    if mnemonic == "nop":
        code = _as_nop(code)
    insn = _decode_one(code)
    if insn is not None and memory is not None:
        absolute = _absolute(memory)
        if (absolute or request.long_form) and memory.base != "rip":
            if not -(1 << 31) <= memory.displacement < (1 << 31):
                raise EncodeFailure(f"{memory.displacement:#x} is out of reach of a displacement of 32 bits")
            # Capstone's own disp_offset and disp_size are wrong behind a 66 prefix.
            at = code.find(_PLACEHOLDER_BYTES)
            if at > 0:
                changed = bytearray(code)
                changed[at : at + 4] = struct.pack("<i", memory.displacement)
                if absolute:
                    changed[at - 1] = _NO_INDEX_NO_BASE
                code = bytes(changed)
                insn = _decode_one(code)
    if insn is None or not agrees(request.meant, insn):
        shown = f"{insn.mnemonic} {insn.op_str}".rstrip() if insn else "something that is no single instruction"
        raise EncodeFailure("", shown, code)
    rip_at = code.find(_PLACEHOLDER_BYTES) if memory is not None and memory.base == "rip" else -1
    text = f"{insn.mnemonic} {insn.op_str}".rstrip()
    return Encoded(code, insn.mnemonic, insn.op_str, text, rip_at)


def _as_nop(code: bytes) -> bytes:
    insn = _decode_one(code)
    if insn is None or code[insn.encoding.modrm_offset - 1] != 0x89:
        raise EncodeFailure("", f"{insn.mnemonic} {insn.op_str}" if insn else "nothing", code)
    at = insn.encoding.modrm_offset - 1
    return code[:at] + b"\x0f\x1f" + code[at + 1 :]


__all__ = ["EncodeFailure", "Encoded", "Request", "cached", "encode_all", "from_table", "mov_number", "remember"]
