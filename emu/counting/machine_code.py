"""The counting hook as machine code: the table that it works on and the few bytes that a Unicorn engine calls."""

import ctypes
import mmap
import platform
import sys
from typing import Final

# The area that rcx points at, in bytes from its start. A slot is 32 bytes:
#
#    0        8       12      16               24              32
#    +--------+-------+-------+----------------+----------------+
#    | address| size  | end   | executions - 1 | end's address  |
#    +--------+-------+-------+----------------+----------------+
#
# `end` is a BlockEnd, zero in a free slot. Executions start at -1, so that the increment itself tells a first execution
# (it gives zero), which is then written to the list of touched slots: a reader looks at those only. `end's address` is
# BlockEnd's.
PREVIOUS: Final = 0x00  # the slot of the block that was entered last
RETURN_TOP: Final = 0x08  # index of the newest entry of the return stack
UNBALANCED: Final = 0x10
TOUCHED_COUNT: Final = 0x18
UNKNOWN_BLOCK: Final = 0x20  # C function that makes a slot for a block and gives its address
RETURN_MASK: Final = 0x28  # entries of the return stack, less one
SCRATCH: Final = 0x40  # a slot outside of the table
SLOTS: Final = 0x1000
SLOT_SIZE: Final = 0x20
HASHED_SLOTS: Final = 1 << 15
SLOT_COUNT: Final = HASHED_SLOTS + 0x400  # a probe runs upwards, past the hashed slots too, to the first free one
TOUCHED: Final = SLOTS + SLOT_COUNT * SLOT_SIZE
RETURNS: Final = TOUCHED + SLOT_COUNT * 8
HASH_FACTOR: Final = 0x9E3779B1

# void hook(uc_engine *rdi, uint64_t rsi_address, uint32_t edx_size, void *rcx_area), System V calling convention. Only
# registers that a callee may change are changed. Capstone reads the same text back from the bytes
# (tests/emu/counting/test_counting_machine_code.py).
LISTING: Final[tuple[tuple[str, str], ...]] = (
    # the slot where this block belongs
    ("69 c6 b1 79 37 9e", "imul eax, esi, 0x9e3779b1"),
    ("c1 e8 0c", "shr eax, 0xc"),
    ("83 e0 e0", "and eax, 0xffffffe0"),
    ("48 8d 84 01 00 10 00 00", "lea rax, [rcx + rax + 0x1000]"),
    # 0x14: is it this slot?
    ("48 39 30", "cmp qword ptr [rax], rsi"),
    ("0f 85 8c 00 00 00", "jne 0xa9"),
    ("39 50 08", "cmp dword ptr [rax + 8], edx"),
    ("0f 85 83 00 00 00", "jne 0xa9"),
    # 0x26: known; did the block before end in a call, a return or a rep?
    ("4c 8b 01", "mov r8, qword ptr [rcx]"),
    ("48 89 01", "mov qword ptr [rcx], rax"),
    ("41 83 78 0c 01", "cmp dword ptr [r8 + 0xc], 1"),
    ("75 18", "jne 0x4b"),
    # 0x33: count
    ("48 ff 40 10", "inc qword ptr [rax + 0x10]"),
    ("74 01", "je 0x3a"),
    ("c3", "ret"),
    # 0x3a: the first execution since the last reset
    ("4c 8b 41 18", "mov r8, qword ptr [rcx + 0x18]"),
    ("4a 89 84 c1 00 90 10 00", "mov qword ptr [rcx + r8*8 + 0x109000], rax"),
    ("48 ff 41 18", "inc qword ptr [rcx + 0x18]"),
    ("c3", "ret"),
    # 0x4b: the block before ended specially
    ("45 8b 48 0c", "mov r9d, dword ptr [r8 + 0xc]"),
    ("41 83 f9 03", "cmp r9d, 3"),
    ("74 1f", "je 0x74"),
    ("77 4b", "ja 0xa2"),
    # a call: push its return address
    ("4c 8b 49 08", "mov r9, qword ptr [rcx + 8]"),
    ("49 ff c1", "inc r9"),
    ("4c 23 49 28", "and r9, qword ptr [rcx + 0x28]"),
    ("4c 89 49 08", "mov qword ptr [rcx + 8], r9"),
    ("4d 8b 50 18", "mov r10, qword ptr [r8 + 0x18]"),
    ("4e 89 94 c9 00 b0 14 00", "mov qword ptr [rcx + r9*8 + 0x14b000], r10"),
    ("eb bf", "jmp 0x33"),
    # 0x74: a return: pop, clear the entry, compare with where it went
    ("4c 8b 49 08", "mov r9, qword ptr [rcx + 8]"),
    ("4e 8d 94 c9 00 b0 14 00", "lea r10, [rcx + r9*8 + 0x14b000]"),
    ("49 ff c9", "dec r9"),
    ("4c 23 49 28", "and r9, qword ptr [rcx + 0x28]"),
    ("4c 89 49 08", "mov qword ptr [rcx + 8], r9"),
    ("45 31 c9", "xor r9d, r9d"),
    ("49 39 32", "cmp qword ptr [r10], rsi"),
    ("41 0f 95 c1", "setne r9b"),
    ("4c 01 49 10", "add qword ptr [rcx + 0x10], r9"),
    ("49 c7 02 ff ff ff ff", "mov qword ptr [r10], 0xffffffffffffffff"),
    ("eb 91", "jmp 0x33"),
    # 0xa2: a rep: entered again at the same instruction, it goes on and isn't counted again
    ("49 39 70 18", "cmp qword ptr [r8 + 0x18], rsi"),
    ("75 8b", "jne 0x33"),
    ("c3", "ret"),
    # 0xa9: another block lives here; a free slot ends the search
    ("83 78 0c 00", "cmp dword ptr [rax + 0xc], 0"),
    ("74 09", "je 0xb8"),
    ("48 83 c0 20", "add rax, 0x20"),
    ("e9 5c ff ff ff", "jmp 0x14"),
    # 0xb8: unknown
    ("51", "push rcx"),
    ("52", "push rdx"),
    ("56", "push rsi"),
    ("ff 51 20", "call qword ptr [rcx + 0x20]"),
    ("5e", "pop rsi"),
    ("5a", "pop rdx"),
    ("59", "pop rcx"),
    ("e9 60 ff ff ff", "jmp 0x26"),
)
CODE: Final = bytes.fromhex("".join(encoding for encoding, _ in LISTING))


NO_RETURN: Final = 0xFFFF_FFFF_FFFF_FFFF  # an entry of the return stack that holds nothing


def slot_for(address: int) -> int:
    """Index of the slot at which the search for a block at this guest address begins."""
    return (((address & 0xFFFFFFFF) * HASH_FACTOR) & 0xFFFFFFFF) >> 17


class Area:
    """Memory shared with machine code: `words` (native 64-bit), `address` on the host; `close()` gives it back."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._anchor = ctypes.c_char.from_buffer(memory)
        self.address = ctypes.addressof(self._anchor)
        self._bytes = memoryview(memory)
        self.words = self._bytes.cast("Q")

    def fill(self, start: int, end: int, byte: bytes) -> None:
        """Sets the bytes from `start` up to `end` to one value."""
        self._bytes[start:end] = byte * (end - start)

    def close(self) -> None:
        """Unmaps the memory; nothing may call or read it any more."""
        self.words.release()
        self._bytes.release()
        del self._anchor
        self._memory.close()


def executable_code() -> Area:
    """The hook in executable memory. `OSError` where this host refuses that, or isn't one whose code we have."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform == "win32":
        raise OSError(f"no counting hook for {platform.machine()} on {sys.platform}")
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access)
    memory.write(CODE)
    return Area(memory)


def counting_area(return_stack_depth: int) -> Area:
    """An empty table with a return stack of so many entries, a power of two. Pages are taken as they are used."""
    memory = mmap.mmap(-1, RETURNS + return_stack_depth * 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return Area(memory)
