"""A block's instructions, and the kind of its last one."""

import threading
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from emu.counting.errors import CountingError

MAX_INSTRUCTION: Final = 15
# A block spans two pages at most; Unicorn reports sizes such as 0xf1f1f1f1 for an instruction that isn't one.
MAX_BLOCK: Final = 0x2000

_PREFIXES: Final = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_REPEATS: Final = frozenset(b"\xf2\xf3")
_STRING: Final = frozenset(b"\x6c\x6d\x6e\x6f\xa4\xa5\xa6\xa7\xaa\xab\xac\xad\xae\xaf")
_JUMPS_8: Final = frozenset((*range(0x70, 0x80), 0xE0, 0xE1, 0xE2, 0xE3, 0xEB))
_JUMPS_32: Final = frozenset(b"\xe8\xe9")


class BlockEnd(IntEnum):
    """Kind of a block's last instruction. Zero is not a value: it marks a free slot."""

    PLAIN = 1
    CALL = 2  # near call; `end_address` is its return address
    RETURN = 3  # near ret; `end_address` is zero
    REP = 4  # string instruction with rep; `end_address` is its own


class Block(NamedTuple):
    """A stretch of code that Unicorn translates at once and enters only at its start."""

    address: int
    size: int  # bytes
    addresses: tuple[int, ...]  # of its instructions
    end: BlockEnd
    end_address: int
    jumps_to_itself: bool  # its last instruction is a direct jump or call to that instruction

    def position(self, rip: int) -> int | None:
        """Index of the instruction at `rip`, or None if no instruction of the block begins there."""
        if not self.address <= rip < self.address + self.size or rip not in self.addresses:
            return None
        return self.addresses.index(rip)


def _end_of(code: bytes) -> BlockEnd:
    at = 0
    repeated = False
    while at < len(code) - 1 and code[at] in _PREFIXES:
        repeated |= code[at] in _REPEATS
        at += 1
    if at < len(code) - 1 and code[at] & 0xF0 == 0x40:  # REX
        at += 1
    opcode = code[at]
    if opcode in (0xC2, 0xC3):
        return BlockEnd.RETURN
    if opcode == 0xE8 or (opcode == 0xFF and at + 1 < len(code) and code[at + 1] >> 3 & 7 == 2):
        return BlockEnd.CALL
    if repeated and opcode in _STRING:
        return BlockEnd.REP
    return BlockEnd.PLAIN


def _jumps_to_itself(code: bytes) -> bool:
    if code[0] in _JUMPS_8 and len(code) == 2:
        return code[1] == 0x100 - 2
    if code[0] in _JUMPS_32 or (code[0] == 0x0F and code[1:2] and code[1] & 0xF0 == 0x80):
        return int.from_bytes(code[-4:], "little", signed=True) == -len(code)
    return False


class _Shape(NamedTuple):
    """A block without its address."""

    offsets: tuple[int, ...]
    left: int  # bytes at its end that are no instruction
    end: BlockEnd
    jumps_to_itself: bool


_capstone: Final = Cs(CS_ARCH_X86, CS_MODE_64)
_capstone_lock: Final = threading.Lock()


# Decoding doesn't depend on the address, and the same code recurs: trampolines are regenerated, sites patched back and
# forth.
@lru_cache(maxsize=1 << 16)
def _shape_of(code: bytes) -> _Shape:
    offsets: list[int] = []
    at = 0
    with _capstone_lock:
        for offset, length, _, _ in _capstone.disasm_lite(code, 0):
            offsets.append(offset)
            at = offset + length
    left = len(code) - at
    if left:
        offsets.append(at)
    ending = code[offsets[-1] :]
    return _Shape(tuple(offsets), left, _end_of(ending), _jumps_to_itself(ending))


def decode_block(read_code: Callable[[int, int], bytes], address: int, size: int) -> Block:
    """The block of `size` bytes at a guest address.

    An unknown instruction at the end of the block counts as one: it faults. Raises `CountingError` if the bytes don't
    make up a block of that size, that is, if `read_code` doesn't return the executed code.
    """
    if not 0 < size <= MAX_BLOCK:
        return Block(address, 1, (address,), BlockEnd.PLAIN, 0, False)
    code = bytes(read_code(address, size))
    if len(code) != size:
        raise CountingError(address, f"{len(code)} bytes of code instead of {size}")
    offsets, left, end, jumps_to_itself = _shape_of(code)
    if left > MAX_INSTRUCTION:
        at = offsets[-1]
        raise CountingError(address + at, f"not an instruction: {code[at : at + MAX_INSTRUCTION].hex(' ')}")
    addresses = tuple([address + offset for offset in offsets])
    end_address = addresses[-1] if end is BlockEnd.REP else address + size if end is BlockEnd.CALL else 0
    return Block(address, size, addresses, end, end_address, jumps_to_itself)
