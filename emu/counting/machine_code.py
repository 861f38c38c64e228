"""The counting hook as machine code: its table and the bytes that a Unicorn engine calls."""

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
RETURN_TOP: Final = 0x08  # the newest entry of the return stack
UNBALANCED: Final = 0x10
TOUCHED_COUNT: Final = 0x18
UNKNOWN_BLOCK: Final = 0x20  # C function that makes a slot for a block and returns its address
RETURN_FIRST: Final = 0x28  # the return stack's first entry in memory, and its last; it wraps
RETURN_LAST: Final = 0x30
STOP_ENGINE: Final = 0x38  # C function that ends the run
SCRATCH: Final = 0x40  # a slot outside of the table
SLOTS: Final = 0x1000
SLOT_SIZE: Final = 0x20
HASHED_SLOTS: Final = 1 << 15
SLOT_COUNT: Final = HASHED_SLOTS + 0x400  # a probe runs upwards, past the hashed slots too, to the first free one
TOUCHED: Final = SLOTS + SLOT_COUNT * SLOT_SIZE
RETURNS: Final = TOUCHED + SLOT_COUNT * 8
HASH_FACTOR: Final = 0x9E3779B1

# void hook(uc_engine *rdi, uint64_t rsi_address, uint32_t edx_size, void *rcx_area), System V calling convention. Only
# registers that a callee may change are changed. Addresses are from the start of the page. Capstone reads the same text
# back from the bytes (tests/emu/counting/test_counting_machine_code.py).
LISTING: Final[tuple[tuple[str, str], ...]] = (
    # target of the entry's jump while a stop is wanted: request the stop, restore the entry, and continue there
    ("51", "push rcx"),
    ("52", "push rdx"),
    ("56", "push rsi"),
    ("57", "push rdi"),
    ("48 83 ec 08", "sub rsp, 8"),
    ("ff 51 38", "call qword ptr [rcx + 0x38]"),
    ("48 83 c4 08", "add rsp, 8"),
    ("5f", "pop rdi"),
    ("5e", "pop rsi"),
    ("5a", "pop rdx"),
    ("59", "pop rcx"),
    ("66 c7 05 02 00 00 00 69 c6", "mov word ptr [rip + 2], 0xc669"),
    ("eb 00", "jmp 0x40"),
    # 0x40, the entry: the slot where this block belongs
    ("69 c6 b1 79 37 9e", "imul eax, esi, 0x9e3779b1"),
    ("c1 e8 0c", "shr eax, 0xc"),
    ("83 e0 e0", "and eax, 0xffffffe0"),
    ("48 8d 84 01 00 10 00 00", "lea rax, [rcx + rax + 0x1000]"),
    # 0x54: is it this slot?
    ("48 39 30", "cmp qword ptr [rax], rsi"),
    ("0f 85 91 00 00 00", "jne 0xee"),
    ("39 50 08", "cmp dword ptr [rax + 8], edx"),
    ("0f 85 88 00 00 00", "jne 0xee"),
    # 0x66: known; how did the block before end?
    ("4c 8b 01", "mov r8, qword ptr [rcx]"),
    ("48 89 01", "mov qword ptr [rcx], rax"),
    ("41 83 78 0c 02", "cmp dword ptr [r8 + 0xc], 2"),
    ("73 18", "jae 0x8b"),
    # 0x73: count
    ("48 ff 40 10", "inc qword ptr [rax + 0x10]"),
    ("74 01", "je 0x7a"),
    ("c3", "ret"),
    # 0x7a: the first execution since the last reset
    ("4c 8b 41 18", "mov r8, qword ptr [rcx + 0x18]"),
    ("4a 89 84 c1 00 90 10 00", "mov qword ptr [rcx + r8*8 + 0x109000], rax"),
    ("48 ff 41 18", "inc qword ptr [rcx + 0x18]"),
    ("c3", "ret"),
    # 0x8b: in a call: push its return address; each way out counts for itself, as a taken jump shows in the time
    ("4c 8b 49 08", "mov r9, qword ptr [rcx + 8]"),
    ("75 1c", "jne 0xad"),
    ("49 83 c1 08", "add r9, 8"),
    ("4c 3b 49 30", "cmp r9, qword ptr [rcx + 0x30]"),
    ("77 40", "ja 0xdb"),
    # 0x9b
    ("4c 89 49 08", "mov qword ptr [rcx + 8], r9"),
    ("4d 8b 50 18", "mov r10, qword ptr [r8 + 0x18]"),
    ("4d 89 11", "mov qword ptr [r9], r10"),
    ("48 ff 40 10", "inc qword ptr [rax + 0x10]"),
    ("74 ce", "je 0x7a"),
    ("c3", "ret"),
    # 0xad: in a return (or a rep, which alone has an address): pop, clear the entry, compare with its destination
    ("49 83 78 18 00", "cmp qword ptr [r8 + 0x18], 0"),
    ("75 33", "jne 0xe7"),
    ("4d 8d 51 f8", "lea r10, [r9 - 8]"),
    ("4c 3b 49 28", "cmp r9, qword ptr [rcx + 0x28]"),
    ("74 23", "je 0xe1"),
    # 0xbe
    ("4c 89 51 08", "mov qword ptr [rcx + 8], r10"),
    ("49 39 31", "cmp qword ptr [r9], rsi"),
    ("49 c7 01 ff ff ff ff", "mov qword ptr [r9], 0xffffffffffffffff"),
    ("75 07", "jne 0xd5"),
    ("48 ff 40 10", "inc qword ptr [rax + 0x10]"),
    ("74 a6", "je 0x7a"),
    ("c3", "ret"),
    # 0xd5: unbalanced
    ("48 ff 41 10", "inc qword ptr [rcx + 0x10]"),
    ("eb 98", "jmp 0x73"),
    # 0xdb, 0xe1: the return stack wraps
    ("4c 8b 49 28", "mov r9, qword ptr [rcx + 0x28]"),
    ("eb ba", "jmp 0x9b"),
    ("4c 8b 51 30", "mov r10, qword ptr [rcx + 0x30]"),
    ("eb d7", "jmp 0xbe"),
    # 0xe7: a rep that is entered again at the same instruction continues and isn't counted again
    ("49 39 70 18", "cmp qword ptr [r8 + 0x18], rsi"),
    ("75 86", "jne 0x73"),
    ("c3", "ret"),
    # 0xee: another block lives here; a free slot ends the search
    ("83 78 0c 00", "cmp dword ptr [rax + 0xc], 0"),
    ("74 09", "je 0xfd"),
    ("48 83 c0 20", "add rax, 0x20"),
    ("e9 57 ff ff ff", "jmp 0x54"),
    # 0xfd: unknown
    ("51", "push rcx"),
    ("52", "push rdx"),
    ("56", "push rsi"),
    ("ff 51 20", "call qword ptr [rcx + 0x20]"),
    ("5e", "pop rsi"),
    ("5a", "pop rdx"),
    ("59", "pop rcx"),
    ("e9 5b ff ff ff", "jmp 0x66"),
)
CODE: Final = bytes.fromhex("".join(encoding for encoding, _ in LISTING))
CODE_START: Final = 0x22
ENTRY: Final = 0x40
# Testing for a wanted stop in every block would cost 4 % of the engine's time. So the first two bytes of the entry are
# replaced, which any thread may do: they are aligned, and no instruction begins between them.
_ENTRY_COUNTS: Final = 0xC669  # the beginning of imul
_ENTRY_STOPS: Final = 0xEB | (CODE_START - ENTRY - 2 & 0xFF) << 8  # jmp CODE_START

NO_RETURN: Final = 0xFFFF_FFFF_FFFF_FFFF  # an entry of the return stack that holds nothing


def slot_for(address: int) -> int:
    """Index of the slot at which the search for a block at this guest address begins."""
    return (((address & 0xFFFFFFFF) * HASH_FACTOR) & 0xFFFFFFFF) >> 17


class Area:
    """Memory shared with machine code: `words` (native 64-bit), `address` on the host; `close()` frees it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._anchor = ctypes.c_char.from_buffer(memory)
        self.address = ctypes.addressof(self._anchor)
        self._bytes = memoryview(memory)
        self.words = self._bytes.cast("Q")

    def fill(self, start: int, end: int, byte: bytes) -> None:
        """Set the bytes from `start` up to `end` to one value."""
        self._bytes[start:end] = byte * (end - start)

    def write(self, at: int, code: bytes) -> None:
        """Write bytes at an offset."""
        self._bytes[at : at + len(code)] = code

    def close(self) -> None:
        """Unmap the memory; it must no longer be called or read."""
        self.words.release()
        self._bytes.release()
        del self._anchor
        self._memory.close()


def executable_code() -> Area:
    """The hook in executable memory. `OSError` if this host refuses that, or has another architecture."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform == "win32":
        raise OSError(f"no counting hook for {platform.machine()} on {sys.platform}")
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access)
    area = Area(memory)
    area.write(CODE_START, CODE)
    return area


def want_stop(code: Area, wanted: bool) -> None:
    """Make the hook stop the engine when it is called next, or cancel that. May be called from any thread."""
    entry = ctypes.c_uint16.from_address(code.address + ENTRY)
    entry.value = _ENTRY_STOPS if wanted else _ENTRY_COUNTS


def counting_area(return_stack_depth: int) -> Area:
    """An empty table with a return stack of `return_stack_depth` entries. Pages are committed on use."""
    memory = mmap.mmap(-1, RETURNS + return_stack_depth * 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area = Area(memory)
    area.words[RETURN_FIRST // 8] = area.address + RETURNS
    area.words[RETURN_LAST // 8] = area.address + RETURNS + (return_stack_depth - 1) * 8
    return area
