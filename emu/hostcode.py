"""Hooks in the host's own machine code: the engine calls them without entering Python.

Besides being quick, such a hook can't be interrupted: a Python callback is where a pending Ctrl-C would be raised, and
the engine's caller would never see it. Where the host refuses executable memory, Python callbacks do the same.
"""

import ctypes
import functools
import mmap
import platform
import sys

from emu import libunicorn

INTERRUPT, LEFT, STOP = 0, 1, 2
"""Words of the cell that the hooks work on: interrupt number (-1: none), instructions left, ``uc_emu_stop``."""

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

Cell = ctypes.Array[ctypes.c_int64]
_Interrupt = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_Instruction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)


def new_cell() -> Cell:
    """A cell for one engine's hooks."""
    return (ctypes.c_int64 * 3)(-1, 0, libunicorn.EMU_STOP_ADDRESS)


class NativeHooks:
    """Host addresses of the two hooks, in executable memory that lives as long as the process."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory[: len(_ON_INTERRUPT)] = _ON_INTERRUPT
        memory[64 : 64 + len(_ON_INSTRUCTION)] = _ON_INSTRUCTION
        self.interrupt, self.instruction = base, base + 64


class PythonHooks:
    """The same two hooks as callbacks, for one cell."""

    def __init__(self, cell: Cell) -> None:
        def on_interrupt(engine: int, number: int, _cell: int) -> None:
            cell[INTERRUPT] = number
            libunicorn.emu_stop(engine)

        def on_instruction(engine: int, _address: int, _size: int, _cell: int) -> None:
            cell[LEFT] -= 1
            if cell[LEFT] < 0:
                libunicorn.emu_stop(engine)

        self._anchors = (_Interrupt(on_interrupt), _Instruction(on_instruction))
        self.interrupt, self.instruction = (ctypes.cast(anchor, ctypes.c_void_p).value or 0 for anchor in self._anchors)


@functools.cache
def native_hooks() -> NativeHooks | None:
    """The machine-code hooks, or None where this host has none."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform == "win32":
        return None
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    try:
        return NativeHooks(mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access))
    except OSError:
        return None


def hooks_for(cell: Cell) -> NativeHooks | PythonHooks:
    """Hooks that work on a cell; it must outlive the engine that calls them."""
    return native_hooks() or PythonHooks(cell)
