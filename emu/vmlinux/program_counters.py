"""Program counters of a run, in order: a hook in machine code notes them, Python reads them afterwards."""

import ctypes
import mmap
from typing import Final

from unicorn.unicorn_const import UC_HOOK_CODE

from emu.counting.machine_code import Area
from emu.host import libunicorn
from emu.host.hook_code import native_hooks

_ENTRIES: Final = 1 << 16
_NEXT, _END, _STOP, _FIRST = 0, 1, 2, 4
"""Words of the area: host addresses of the next entry, of the end, of ``uc_emu_stop``; an empty word; the entries."""
# void hook(uc_engine *rdi, uint64_t rsi_address, uint32_t edx_size, void *rcx_area)
_NOTE = bytes.fromhex(
    "48 8b 01"  # mov rax, [rcx]
    "48 3b 70 f8"  # cmp rsi, [rax - 8]    ; a repeated string instruction comes again and again: it counts once
    "74 10"  # je done
    "48 3b 41 08"  # cmp rax, [rcx + 8]
    "73 0b"  # jae full
    "48 89 30"  # mov [rax], rsi
    "48 83 c0 08"  # add rax, 8
    "48 89 01"  # mov [rcx], rax
    "c3"  # done: ret
    "48 8b 41 10"  # full: mov rax, [rcx + 16]
    "ff e0"  # jmp rax
)
_Instruction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)


class ProgramCounters:
    """The log of one engine. Runs end when it is full: ``take`` then, and go on.

    An instruction that is executed several times in a row is noted once: that is what a CPU retires for one with a rep
    prefix. While the log is in the engine every instruction costs a call.
    """

    def __init__(self, engine: int) -> None:
        self._engine = engine
        self._area = Area(mmap.mmap(-1, 8 * (_FIRST + _ENTRIES), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._start = self._area.address + 8 * _FIRST
        words = self._area.words
        words[_NEXT], words[_END], words[_STOP] = self._start, self._start + 8 * _ENTRIES, libunicorn.EMU_STOP_ADDRESS
        self._code, function = self._hook_function()
        self._hook = libunicorn.hook_add(engine, UC_HOOK_CODE, function, self._area.address)
        libunicorn.flush_translations(engine)

    def _hook_function(self) -> tuple[object, int]:
        """The object to keep alive, and the hook's host address."""
        if native_hooks() is not None:
            access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
            memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access)
            memory[: len(_NOTE)] = _NOTE
            return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))
        words, start = self._area.words, self._area.address

        def note(engine: int, address: int, _size: int, _area: int) -> None:
            at = (words[_NEXT] - start) // 8
            if words[at - 1] == address:
                return
            if words[_NEXT] >= words[_END]:
                libunicorn.emu_stop(engine)
                return
            words[at] = address
            words[_NEXT] += 8

        callback = _Instruction(note)
        return callback, ctypes.cast(callback, ctypes.c_void_p).value or 0

    @property
    def is_full(self) -> bool:
        """True if the run ended because the log was full."""
        return self._area.words[_NEXT] >= self._area.words[_END]

    def drop_last(self, address: int) -> None:
        """Take back the last entry if it is this address: an instruction that was not executed after all."""
        words = self._area.words
        at = (words[_NEXT] - self._area.address) // 8 - 1
        if at >= _FIRST and words[at] == address:
            words[at] = 0
            words[_NEXT] -= 8

    def take(self) -> list[int]:
        """The entries since the last time."""
        words = self._area.words
        end = (words[_NEXT] - self._area.address) // 8
        taken = words[_FIRST:end].tolist()
        words[_FIRST - 1] = taken[-1] if taken else words[_FIRST - 1]
        words[_NEXT] = self._start
        return taken

    def begin(self, most: int | None) -> None:
        """Empty the log before a new run, which ends when it is full: after ``most`` instructions at the latest."""
        self._area.words[_FIRST - 1] = 0
        self._area.words[_NEXT] = self._start
        self.allow(most)

    def allow(self, most: int | None) -> None:
        """Let the run end after so many more instructions; None: for want of room only. The log must be empty."""
        room = _ENTRIES if most is None else max(0, min(most, _ENTRIES))
        self._area.words[_END] = self._start + 8 * room

    def remove(self) -> None:
        """Take the hook out of the engine."""
        libunicorn.hook_del(self._engine, self._hook)
        libunicorn.flush_translations(self._engine)
