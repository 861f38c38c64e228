"""Request to end a run from another thread at a defined place: the start of a block.

``uc_emu_stop`` from another thread sometimes leaves a wrong rip (measured: 1 of 150 times), so that the resumed run
repeats an instruction. Called from a hook it is exact.
"""

import ctypes
import mmap
from typing import Final

from unicorn.unicorn_const import UC_HOOK_BLOCK

from emu.host import libunicorn
from emu.host.hook_code import native_hooks

# void hook(uc_engine *rdi, uint64_t rsi_address, uint32_t edx_size, void *rcx_words)
_AT_BLOCK: Final = bytes.fromhex(
    "83 39 00"  # cmp dword ptr [rcx], 0
    "75 01"  # jne stop
    "c3"  # ret
    "48 8b 41 08"  # stop: mov rax, [rcx + 8]
    "ff e0"  # jmp rax
)
_Block = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)


class StopRequest:
    """Stop request of one engine. Must be referenced as long as the engine runs, or until ``remove``."""

    def __init__(self, engine: int) -> None:
        self._engine = engine
        self._words = (ctypes.c_int64 * 2)(0, libunicorn.EMU_STOP_ADDRESS)
        self._code, function = self._hook_function()
        self._hook = libunicorn.hook_add(engine, UC_HOOK_BLOCK, function, ctypes.addressof(self._words))
        libunicorn.flush_translations(engine)

    def remove(self) -> None:
        """Remove the hook from the engine, which must not be running."""
        libunicorn.hook_del(self._engine, self._hook)
        libunicorn.flush_translations(self._engine)

    def _hook_function(self) -> tuple[object, int]:
        """The object to keep alive, and the hook's host address."""
        words = self._words
        if native_hooks() is not None:
            access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
            memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access)
            memory[: len(_AT_BLOCK)] = _AT_BLOCK
            return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def at_block(engine: int, _address: int, _size: int, _words: int) -> None:
            if words[0]:
                libunicorn.emu_stop(engine)

        callback = _Block(at_block)
        return callback, ctypes.cast(callback, ctypes.c_void_p).value or 0

    def __call__(self, wanted: bool) -> None:
        """End the run when the next block is entered; with False, cancel the request. May be called from any thread."""
        self._words[0] = wanted
