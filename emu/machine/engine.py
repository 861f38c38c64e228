"""One Unicorn engine, and the exits of its runs."""

import enum
from collections.abc import Callable, Sequence
from ctypes import addressof
from typing import cast

from unicorn.unicorn_const import (
    UC_ARCH_X86,
    UC_ERR_OK,
    UC_HOOK_CODE,
    UC_HOOK_INTR,
    UC_HOOK_MEM_READ,
    UC_HOOK_MEM_WRITE,
    UC_MODE_64,
)
from unicorn.unicorn_py3.arch.intel import UcIntel
from unicorn.unicorn_py3.unicorn import Uc

from emu.host import libunicorn
from emu.host.access_log import VisitLog
from emu.host.hook_code import (
    HELD,
    INTERRUPT,
    LEFT,
    LOG_END,
    LOG_NEXT,
    MARKED_RANGES,
    RANGE_WORDS,
    STOPPING_RANGES,
    WATCH_LEFT,
    Cell,
    hooks_for,
    new_cell,
    new_watch,
)
from emu.host.stop_request import StopRequest
from emu.host.watchdog import Watched
from emu.machine.registers import Registers

TRANSLATION_BUFFER = 8 << 20
UNLIMITED = 1 << 62


class Exit(enum.IntEnum):
    """Reason why a run ended."""

    HALT = 0
    """A ``hlt`` was executed; rip is after it."""
    INTERRUPT = 1
    """An exception or a software interrupt; its number is ``Engine.interrupt_number``."""
    LIMIT = 2
    """The instructions that ``Engine.limit`` allowed were executed."""
    TICK = 3
    """Stopped by the watchdog; the run may be resumed."""
    ERROR = 4
    """Unicorn returned an error; its number is ``Engine.error``."""


def new_engine() -> UcIntel:
    """A 64-bit engine that doesn't reserve a gigabyte of address space for translated code."""
    uc = cast(UcIntel, Uc(UC_ARCH_X86, UC_MODE_64))
    uc.ctl_set_tcg_buffer_size(TRANSLATION_BUFFER)
    return uc


class DataWatch:
    """A range of physical addresses of one engine; a run ends after the first instruction that accesses it."""

    def __init__(self, engine: "Engine", start: int, size: int, *, reads: bool, writes: bool) -> None:
        self._engine = engine
        self.words: Cell = new_watch(engine._cell, start, size)
        kinds = UC_HOOK_MEM_READ * reads | UC_HOOK_MEM_WRITE * writes
        self._hook = libunicorn.hook_add(engine.handle, kinds, engine._hooks.watched, addressof(self.words))
        libunicorn.flush_translations(engine.handle)

    @property
    def left(self) -> int | None:
        """Instructions left of the limit after the one that accessed the range; None without an access."""
        return self.words[WATCH_LEFT] - 1 if self.words[WATCH_LEFT] else None

    def clear(self) -> None:
        """Forget the access."""
        self.words[WATCH_LEFT] = 0

    def remove(self) -> None:
        """Remove the watch."""
        libunicorn.hook_del(self._engine.handle, self._hook)
        libunicorn.flush_translations(self._engine.handle)


class Engine:
    """Runs of one engine. Events end a run instead of calling Python: they are examined after the run, with no engine
    on the host's stack, so that runs nest, and text can be written and tasks switched at any event.
    """

    def __init__(self, uc: UcIntel) -> None:
        self.uc = uc
        self.handle = uc._uch.value or 0
        self.regs = Registers(self.handle)
        self._cell = new_cell()
        self._cell_address = addressof(self._cell)
        self._hooks = hooks_for(self._cell)
        self._stop: StopRequest | None = StopRequest(self.handle)
        self._watched = Watched(self._stop)
        self._limit_hook = 0
        self._hook = self._hooks.instruction
        self._log: VisitLog | None = None
        self._access_hook = 0
        self.error = 0
        # A reference to the engine keeps alive what its hooks refer to.
        self._kept: list[object] = [self._cell, self._hooks, self._stop]
        uc.__dict__["tramplab"] = self._kept
        self._interrupt_hook = libunicorn.hook_add(
            self.handle, UC_HOOK_INTR, self._hooks.interrupt, self._cell_address
        )

    @property
    def interrupt_number(self) -> int:
        """Number of the exception that ended the last run."""
        return self._cell[INTERRUPT]

    @property
    def left(self) -> int:
        """Instructions left of the limit; negative when the limit ended a run."""
        return self._cell[LEFT]

    @property
    def is_limited(self) -> bool:
        """True if runs count ``left`` down."""
        return self._limit_hook != 0

    def limit(self, instructions: int | None) -> None:
        """Limit the total number of instructions of the following runs; None removes the limit.

        Each iteration of a rep counts. Changing between limited and unlimited runs discards all translations.
        """
        if instructions is None:
            if self._limit_hook:
                libunicorn.hook_del(self.handle, self._limit_hook)
                libunicorn.flush_translations(self.handle)
                self._limit_hook = 0
            return
        self._cell[LEFT] = instructions
        if not self._limit_hook:
            self._limit_hook = libunicorn.hook_add(self.handle, UC_HOOK_CODE, self._hook, self._cell_address)
            libunicorn.flush_translations(self.handle)

    def count_marked(self, ranges: Sequence[tuple[int, int, int]], log: VisitLog | None = None) -> None:
        """Let limits count marked instructions only: a run ends before the next marked one.

        ``ranges``: at most two of (guest address, size in bytes, host address of one byte per guest address, non-zero
        for a marked instruction); empty: every instruction counts. ``log`` receives the marked instructions that
        limited runs execute, and all memory accesses.
        """
        self._set_ranges(ranges, STOPPING_RANGES[:MARKED_RANGES])
        self._note_visits(log)
        hooks = self._hooks
        self._hook = hooks.logged if log else hooks.marked if ranges else hooks.instruction

    def stop_at(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Let limited runs end before marked instructions: ``left`` is below -1 then. Every instruction counts.

        ``ranges``: at most three, in the form of ``count_marked``; empty: runs end at the limit only.
        """
        self._set_ranges(ranges, STOPPING_RANGES)
        self._note_visits(None)
        self._hook = self._hooks.stopping if ranges else self._hooks.instruction

    def hold(self, *, held: bool) -> bool:
        """Disable, or enable again, stops at marked instructions and watched data; returns the previous setting."""
        before = bool(self._cell[HELD])
        self._cell[HELD] = held
        return before

    def watch(self, start: int, size: int, *, reads: bool, writes: bool) -> DataWatch:
        """End limited runs after an instruction that accesses a range of physical addresses."""
        return DataWatch(self, start, size, reads=reads, writes=writes)

    def _set_ranges(self, ranges: Sequence[tuple[int, int, int]], words: Sequence[int]) -> None:
        """Write the ranges to these words of the cell."""
        if len(ranges) > len(words):
            raise ValueError(f"{len(ranges)} ranges, but at most {len(words)} are possible")
        self.limit(None)
        for number, word in enumerate(words):
            start, size, marks = ranges[number] if number < len(ranges) else (0, 0, 0)
            signed = start - (1 << 64) if start >> 63 else start
            self._cell[word : word + RANGE_WORDS] = [signed, size, marks]

    def _note_visits(self, log: VisitLog | None) -> None:
        if self._access_hook:
            libunicorn.hook_del(self.handle, self._access_hook)
            self._access_hook = 0
        self._log = log
        if log is not None:
            self._cell[LOG_NEXT], self._cell[LOG_END] = log.start, log.end
            self._access_hook = libunicorn.hook_add(
                self.handle, UC_HOOK_MEM_READ | UC_HOOK_MEM_WRITE, self._hooks.log_access, self._cell_address
            )
        libunicorn.flush_translations(self.handle)

    def take_visits(self) -> bytes:
        """Visits logged since the last call; see VisitLog."""
        log, up_to = self._log, self._cell[LOG_NEXT]
        if log is None or up_to == log.start:
            return b""
        self._cell[LOG_NEXT] = log.start
        return log.taken(up_to)

    def run(self, rip: int) -> Exit:
        """Run from a guest address until an exit."""
        cell, watched = self._cell, self._watched
        cell[INTERRUPT] = -1
        watched.begin()
        try:
            error = libunicorn.emu_start(self.handle, rip, 0, 0, 0)
        finally:
            watched.running = False
        if cell[INTERRUPT] >= 0:
            return Exit.INTERRUPT
        if error != UC_ERR_OK:
            self.error = error
            return Exit.ERROR
        if self._limit_hook and cell[LEFT] < 0:
            return Exit.LIMIT
        if watched.interrupted:
            return Exit.TICK
        return Exit.HALT

    def stop_with(self, request: Callable[[bool], object] | None) -> None:
        """Make the watchdog end runs by ``request``; None for the engine's own request, at the start of a block."""
        if self._stop is not None:
            self._stop.remove()
        self._stop = StopRequest(self.handle) if request is None else None
        self._kept[-1] = self._stop
        stop = request or self._stop
        assert stop is not None
        self._watched.replace(stop)

    def close(self) -> None:
        """Remove the hooks. The engine itself lives as long as it is referenced."""
        self._watched.close()
        self.limit(None)
        self._note_visits(None)
        if self._stop is not None:
            self._stop.remove()
        libunicorn.hook_del(self.handle, self._interrupt_hook)
