"""Hooks in the host's machine code: the engine calls them without entering Python.

Besides being fast, such a hook can't be interrupted: in a Python callback a pending Ctrl-C would be raised, and the
engine's caller would never see it. If the host refuses executable memory, Python callbacks do the same.
"""

import ctypes
import functools
import mmap
import platform
import sys
from collections.abc import Iterable

from emu.host import libunicorn

INTERRUPT, LEFT, STOP, RANGES = 0, 1, 2, 3
"""Words of the cell that the hooks use: interrupt number (-1: none), instructions left, ``uc_emu_stop``, and two ranges
of code in which only marked instructions count: start, size and the host address of a byte for each address.
"""
RANGE_WORDS = 3
MARKED_RANGES = 2
_MARKED = range(RANGES, RANGES + RANGE_WORDS * MARKED_RANGES, RANGE_WORDS)
AT, LOG_NEXT, LOG_END = 9, 10, 11
"""Log of visits (``emu.host.access_log``): the address of the instruction under execution; host addresses of the log's
next entry and of its end.
"""
VISIT_WORDS = 3
"""Words per log entry."""
STOPPING_RANGES, HELD = (RANGES, RANGES + RANGE_WORDS, 12), 15
"""Ranges in which runs stop at marked instructions; and a word that disables these stops and those at watched data.
"""
WATCH_START, WATCH_LAST, WATCH_CELL, WATCH_LEFT, WATCH_ADDRESS, WATCH_KIND = range(6)
"""Words of a watch of a data range: its start, its size less one, the engine's cell; after an access, the number of
instructions left plus one, the address, and Unicorn's kind of access.
"""

# void hook(uc_engine *rdi, uint32_t esi_number, void *rdx_cell)
_ON_INTERRUPT = bytes.fromhex(
    "89 f0"  # mov eax, esi
    "48 89 02"  # mov [rdx], rax
    "48 8b 42 10"  # mov rax, [rdx + 16]
    "ff e0"  # jmp rax
)
# void hook(uc_engine *rdi, uint64_t rsi_address, uint32_t edx_size, void *rcx_cell)
_ON_INSTRUCTION = bytes.fromhex(
    "48 83 69 08 01"  # sub qword ptr [rcx + 8], 1
    "78 01"  # js stop
    "c3"  # ret
    "48 8b 41 10"  # stop: mov rax, [rcx + 16]
    "ff e0"  # jmp rax
)
# Part of such a hook: return if the address is in neither of two ranges; else compare its byte with 0.
_FIND_MARK = (
    "48 89 f0"  # mov rax, rsi
    "48 2b 41 18"  # sub rax, [rcx + 24]
    "48 3b 41 20"  # cmp rax, [rcx + 32]
    "72 0e"  # jb first
    "48 89 f0"  # mov rax, rsi
    "48 2b 41 30"  # sub rax, [rcx + 48]
    "48 3b 41 38"  # cmp rax, [rcx + 56]
    "72 07"  # jb second
    "c3"  # ret
    "48 03 41 28"  # first: add rax, [rcx + 40]
    "eb 04"  # jmp test
    "48 03 41 40"  # second: add rax, [rcx + 64]
    "80 38 00"  # test: cmp byte ptr [rax], 0
)
# The same as _ON_INSTRUCTION, if the byte is not 0.
_ON_MARKED = bytes.fromhex(
    _FIND_MARK + "74 07"  # je done
    "48 83 69 08 01"  # sub qword ptr [rcx + 8], 1
    "78 01"  # js stop
    "c3"  # done: ret
    "48 8b 41 10"  # stop: mov rax, [rcx + 16]
    "ff e0"  # jmp rax
)
# Every instruction counts; the run stops before one whose byte in one of three ranges is not 0. LEFT is then -2 minus
# what was left, so that instructions executed are always the limit, plus LEFT, plus 1.
_ON_STOPPING = bytes.fromhex(
    "48 83 69 08 01"  # sub qword ptr [rcx + 8], 1
    "78 4d"  # js stop
    "48 89 f0"  # mov rax, rsi
    "48 2b 41 18"  # sub rax, [rcx + 24]
    "48 3b 41 20"  # cmp rax, [rcx + 32]
    "72 1b"  # jb first
    "48 89 f0"  # mov rax, rsi
    "48 2b 41 30"  # sub rax, [rcx + 48]
    "48 3b 41 38"  # cmp rax, [rcx + 56]
    "72 14"  # jb second
    "48 89 f0"  # mov rax, rsi
    "48 2b 41 60"  # sub rax, [rcx + 96]
    "48 3b 41 68"  # cmp rax, [rcx + 104]
    "72 0d"  # jb third
    "c3"  # ret
    "48 03 41 28"  # first: add rax, [rcx + 40]
    "eb 0a"  # jmp test
    "48 03 41 40"  # second: add rax, [rcx + 64]
    "eb 04"  # jmp test
    "48 03 41 70"  # third: add rax, [rcx + 112]
    "80 38 00"  # test: cmp byte ptr [rax], 0
    "74 16"  # je done
    "48 83 79 78 00"  # cmp qword ptr [rcx + 120], 0
    "75 0f"  # jne done
    "48 f7 51 08"  # not qword ptr [rcx + 8]
    "48 83 69 08 01"  # sub qword ptr [rcx + 8], 1
    "48 8b 41 10"  # stop: mov rax, [rcx + 16]
    "ff e0"  # jmp rax
    "c3"  # done: ret
)
# void hook(uc_engine *rdi, uc_mem_type esi, uint64_t rdx_address, int ecx_size, int64_t r8_value, void *r9_watch)
# Ends the run before the next instruction if the access overlaps the range; the first access counts.
_ON_WATCHED = bytes.fromhex(
    "89 c9"  # mov ecx, ecx
    "48 8d 44 0a ff"  # lea rax, [rdx + rcx - 1]
    "49 2b 01"  # sub rax, [r9]
    "49 03 49 08"  # add rcx, [r9 + 8]
    "48 39 c8"  # cmp rax, rcx
    "73 2e"  # jae done
    "49 8b 41 10"  # mov rax, [r9 + 16]
    "48 83 78 78 00"  # cmp qword ptr [rax + 120], 0
    "75 23"  # jne done
    "49 83 79 18 00"  # cmp qword ptr [r9 + 24], 0
    "75 1c"  # jne done
    "48 8b 48 08"  # mov rcx, [rax + 8]
    "48 83 c1 01"  # add rcx, 1
    "49 89 49 18"  # mov [r9 + 24], rcx
    "49 89 51 20"  # mov [r9 + 32], rdx
    "49 89 71 28"  # mov [r9 + 40], rsi
    "48 c7 40 08 00 00 00 00"  # mov qword ptr [rax + 8], 0
    "c3"  # done: ret
)
# As _ON_MARKED; marked instructions that are executed are logged.
_ON_LOGGED = bytes.fromhex(
    "48 89 71 48"  # mov [rcx + 72], rsi
    + _FIND_MARK
    + "74 29"  # je done
    "48 83 69 08 01"  # sub qword ptr [rcx + 8], 1
    "78 23"  # js stop
    "48 8b 41 50"  # mov rax, [rcx + 80]
    "48 3b 41 58"  # cmp rax, [rcx + 88]
    "73 18"  # jae done
    "48 89 30"  # mov [rax], rsi
    "48 c7 40 08 00 00 00 00"  # mov qword ptr [rax + 8], 0
    "48 c7 40 10 00 00 00 00"  # mov qword ptr [rax + 16], 0
    "48 83 41 50 18"  # add qword ptr [rcx + 80], 24
    "c3"  # done: ret
    "48 8b 41 10"  # stop: mov rax, [rcx + 16]
    "ff e0"  # jmp rax
)
# void hook(uc_engine *rdi, int esi_type, uint64_t rdx_address, int ecx_size, int64_t r8_value, void *r9_cell)
_ON_LOGGED_ACCESS = bytes.fromhex(
    "49 8b 41 50"  # mov rax, [r9 + 80]
    "49 3b 41 58"  # cmp rax, [r9 + 88]
    "73 16"  # jae done
    "4d 8b 51 48"  # mov r10, [r9 + 72]
    "4c 89 10"  # mov [rax], r10
    "48 89 50 08"  # mov [rax + 8], rdx
    "89 70 10"  # mov [rax + 16], esi
    "89 48 14"  # mov [rax + 20], ecx
    "49 83 41 50 18"  # add qword ptr [r9 + 80], 24
    "c3"  # done: ret
)

Cell = ctypes.Array[ctypes.c_int64]
_Interrupt = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_Instruction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)
_Memory = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
)


def new_cell() -> Cell:
    """A cell for one engine's hooks."""
    return (ctypes.c_int64 * (HELD + 1))(-1, 0, libunicorn.EMU_STOP_ADDRESS)


def new_watch(cell: Cell, start: int, size: int) -> Cell:
    """Cell of a watch of a data range."""
    signed = start - (1 << 64) if start >> 63 else start
    return (ctypes.c_int64 * 6)(signed, size - 1, ctypes.addressof(cell))


class NativeHooks:
    """Host addresses of the hooks, in executable memory that lives as long as the process."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory[: len(_ON_INTERRUPT)] = _ON_INTERRUPT
        memory[64 : 64 + len(_ON_INSTRUCTION)] = _ON_INSTRUCTION
        memory[128 : 128 + len(_ON_MARKED)] = _ON_MARKED
        memory[256 : 256 + len(_ON_LOGGED)] = _ON_LOGGED
        memory[384 : 384 + len(_ON_LOGGED_ACCESS)] = _ON_LOGGED_ACCESS
        memory[512 : 512 + len(_ON_STOPPING)] = _ON_STOPPING
        memory[640 : 640 + len(_ON_WATCHED)] = _ON_WATCHED
        self.interrupt, self.instruction, self.marked = base, base + 64, base + 128
        self.logged, self.log_access, self.stopping, self.watched = base + 256, base + 384, base + 512, base + 640


class PythonHooks:
    """The same hooks as callbacks, for one cell."""

    def __init__(self, cell: Cell) -> None:
        def on_interrupt(engine: int, number: int, _cell: int) -> None:
            cell[INTERRUPT] = number
            libunicorn.emu_stop(engine)

        def on_instruction(engine: int, _address: int, _size: int, _cell: int) -> None:
            cell[LEFT] -= 1
            if cell[LEFT] < 0:
                libunicorn.emu_stop(engine)

        def is_marked(address: int, words: Iterable[int]) -> bool:
            for word in words:
                start, length, marks = cell[word : word + RANGE_WORDS]
                offset = address - start & (1 << 64) - 1
                if offset < length and ctypes.c_uint8.from_address(marks + offset).value:
                    return True
            return False

        def on_marked(engine: int, address: int, size: int, _cell: int) -> None:
            if is_marked(address, _MARKED):
                on_instruction(engine, address, size, _cell)

        def on_stopping(engine: int, address: int, size: int, _cell: int) -> None:
            on_instruction(engine, address, size, _cell)
            if cell[LEFT] >= 0 and not cell[HELD] and is_marked(address, STOPPING_RANGES):
                cell[LEFT] = -2 - cell[LEFT]
                libunicorn.emu_stop(engine)

        def on_watched(_engine: int, kind: int, address: int, size: int, _value: int, at: int) -> None:
            watch = (ctypes.c_int64 * 6).from_address(at)
            inside = address + size - 1 - watch[WATCH_START] & (1 << 64) - 1 < size + watch[WATCH_LAST]
            if inside and not cell[HELD] and not watch[WATCH_LEFT]:
                signed = address - (1 << 64) if address >> 63 else address
                watch[WATCH_LEFT], watch[WATCH_ADDRESS], watch[WATCH_KIND] = cell[LEFT] + 1, signed, kind
                cell[LEFT] = 0

        def log(*words: int) -> None:
            if cell[LOG_NEXT] < cell[LOG_END]:
                (ctypes.c_uint64 * VISIT_WORDS).from_address(cell[LOG_NEXT])[:] = list(words)
                cell[LOG_NEXT] += 8 * VISIT_WORDS

        def on_logged(engine: int, address: int, size: int, _cell: int) -> None:
            cell[AT] = address
            if is_marked(address, _MARKED):
                on_instruction(engine, address, size, _cell)
                if cell[LEFT] >= 0:
                    log(address, 0, 0)

        def on_logged_access(_engine: int, kind: int, address: int, size: int, _value: int, _cell: int) -> None:
            log(cell[AT] & (1 << 64) - 1, address, size << 32 | kind)

        self._anchors = (
            _Interrupt(on_interrupt), _Instruction(on_instruction), _Instruction(on_marked), _Instruction(on_logged),
            _Memory(on_logged_access), _Instruction(on_stopping), _Memory(on_watched),
        )  # fmt: skip
        addresses = [ctypes.cast(anchor, ctypes.c_void_p).value or 0 for anchor in self._anchors]
        self.interrupt, self.instruction, self.marked, self.logged = addresses[:4]
        self.log_access, self.stopping, self.watched = addresses[4:]


@functools.cache
def native_hooks() -> NativeHooks | None:
    """The machine-code hooks, or None if this host has none."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform == "win32":
        return None
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        return NativeHooks(mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access))
    except OSError:
        return None


def hooks_for(cell: Cell) -> NativeHooks | PythonHooks:
    """Hooks that use a cell; the cell must outlive the engine that calls them."""
    return native_hooks() or PythonHooks(cell)
