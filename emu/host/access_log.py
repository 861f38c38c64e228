"""Log of the instructions and memory accesses of one engine, in order: written by machine code, read by Python."""

import ctypes
import mmap

from emu.host.hook_code import VISIT_WORDS

_ENTRIES = 1 << 14
_SIZE = VISIT_WORDS * 8
READ, WRITE = 16, 17
"""Kinds of access, in the lower half of an access's third word (``UC_MEM_READ``, ``UC_MEM_WRITE``); the upper half
is the number of bytes.
"""


class VisitLog:
    """Entries of three words: the address of an instruction, the physical address that it accessed (0 for the
    instruction itself, if it is marked), and the kind.

    Entries that don't fit until the next ``take`` are dropped.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRIES * _SIZE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        """Host address of the first entry."""
        self.end = self.start + _ENTRIES * _SIZE

    def taken(self, up_to: int) -> bytes:
        """The entries before a host address, as bytes."""
        return self._memory[: up_to - self.start]


def words_of(visits: bytes) -> list[int]:
    """The words of entries."""
    return memoryview(visits).cast("Q").tolist()
