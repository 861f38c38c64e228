"""What one engine executed and touched, in order: written by hooks in machine code, read by Python at its leisure."""

import ctypes
import mmap

from emu.host.hook_code import VISIT_WORDS

_ENTRIES = 1 << 14
_SIZE = VISIT_WORDS * 8
READ, WRITE = 16, 17
"""What was done, in the lower half of an access's third word (``UC_MEM_READ``, ``UC_MEM_WRITE``); the upper half is how
many bytes.
"""


class VisitLog:
    """Entries of three words: the address of an instruction, the physical address that it touched (0 for the
    instruction itself, where it is marked), and how.

    What doesn't fit until somebody ``take``s it is not noted.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRIES * _SIZE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        """Host address of the first entry."""
        self.end = self.start + _ENTRIES * _SIZE

    def taken(self, up_to: int) -> bytes:
        """The entries before a host address."""
        return self._memory[: up_to - self.start]


def words_of(visits: bytes) -> list[int]:
    """The words of entries."""
    return memoryview(visits).cast("Q").tolist()
