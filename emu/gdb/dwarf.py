"""Call frame information as a ``.debug_frame`` section: the DWARF 5 standard, 6.4 and 7.24."""

import struct
from collections.abc import Iterable, Iterator, Sequence

from emu.machine.unwind import CALLEE_SAVED, UnwindRow

_NUMBERS = {
    **dict(zip(("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"), range(8), strict=True)),
    **{f"r{number}": number for number in range(8, 16)},
}
"""DWARF's numbers of registers on x86_64 (System V ABI, figure 3.36)."""
_RETURN_ADDRESS = 16
_DATA_ALIGNMENT = -8
_ADVANCE, _OFFSET, _RESTORE = 0x40, 0x80, 0xC0
_ADVANCE1, _ADVANCE2, _ADVANCE4, _UNDEFINED = 0x02, 0x03, 0x04, 0x07
_DEF_CFA, _DEF_CFA_SF, _OFFSET_SF = 0x0C, 0x12, 0x11
_CIE_ID = 0xFFFFFFFF


def debug_frame(functions: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The section for functions: address, size, and instructions from ``frame_program``."""
    head = struct.pack("<IB", _CIE_ID, 1) + b"\0" + _uleb(1) + _sleb(_DATA_ALIGNMENT) + _uleb(_RETURN_ADDRESS)
    head += bytes((_DEF_CFA,)) + _uleb(_NUMBERS["rsp"]) + _uleb(8)
    head += bytes((_OFFSET | _RETURN_ADDRESS,)) + _uleb(1)
    entries = [_entry(head)]
    entries += [_entry(struct.pack("<IQQ", 0, address, size) + program) for address, size, program in functions]
    return b"".join(entries)


def frame_program(rows: Sequence[tuple[int, UnwindRow]]) -> bytes:
    """The call frame instructions for these rows, from a function's first instruction on."""
    return b"".join(_instructions(rows))


def outermost() -> bytes:
    """The call frame instructions of an outermost frame: an unwinder stops there, and needs no stack for it."""
    frame = bytes((_DEF_CFA,)) + _uleb(_RETURN_ADDRESS) + _uleb(0)
    return frame + _unknown()


def _unknown() -> bytes:
    """Call frame instructions for an unknown return address."""
    return bytes((_UNDEFINED,)) + _uleb(_RETURN_ADDRESS)


def _instructions(rows: Sequence[tuple[int, UnwindRow]]) -> Iterator[bytes]:
    at, now, known = 0, UnwindRow("rsp", 8), True
    for offset, row in rows:
        if offset > at:
            yield _advance(offset - at)
            at = offset
        if not row.base:
            yield _unknown()
            known = False
            continue
        if not known:
            yield bytes((_OFFSET | _RETURN_ADDRESS,)) + _uleb(1)
            known = True
        if (row.base, row.offset) != (now.base, now.offset):
            yield _def_cfa(row)
        before, after = dict(now.saved), dict(row.saved)
        for name in CALLEE_SAVED:
            if before.get(name) == after.get(name):
                continue
            number = _NUMBERS[name]
            if name not in after:
                yield bytes((_RESTORE | number,))
            elif after[name] < 0:
                yield bytes((_OFFSET_SF,)) + _uleb(number) + _sleb(after[name] // 8)
            else:
                yield bytes((_OFFSET | number,)) + _uleb(after[name] // 8)
        now = row


def _def_cfa(row: UnwindRow) -> bytes:
    register = _uleb(_NUMBERS[row.base])
    if row.offset >= 0:
        return bytes((_DEF_CFA,)) + register + _uleb(row.offset)
    return bytes((_DEF_CFA_SF,)) + register + _sleb(row.offset // _DATA_ALIGNMENT)


def _advance(by: int) -> bytes:
    if by < 0x40:
        return bytes((_ADVANCE | by,))
    if by < 1 << 8:
        return struct.pack("<BB", _ADVANCE1, by)
    if by < 1 << 16:
        return struct.pack("<BH", _ADVANCE2, by)
    return struct.pack("<BI", _ADVANCE4, by)


def _entry(content: bytes) -> bytes:
    """A CIE or FDE with its length, filled up with DW_CFA_nop."""
    size = len(content) + -(len(content) + 4) % 8
    return struct.pack("<I", size) + content.ljust(size, b"\0")


def _uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def _sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        done = (value == 0 and not low & 0x40) or (value == -1 and low & 0x40)
        out.append(low | (0 if done else 0x80))
        if done:
            return bytes(out)
