"""Watchdog that interrupts long runs regularly, for Ctrl-C and limits on host time.

A running engine blocks its thread; the interpreter handles a signal only when the run returns. One daemon thread checks
all engines, and stops those that have been in one run since the last check. The position of an interruption has no
effect: the run is resumed from there.
"""

import threading
import time
import weakref
from collections.abc import Callable

TICK_SECONDS = 0.1


class Watched:
    """An engine watched by the watchdog. ``serial`` counts its runs; one is under way while ``running``."""

    __slots__ = ("__weakref__", "_lock", "_open", "interrupted", "request", "running", "serial")

    def __init__(self, request: Callable[[bool], object]) -> None:
        self.request = request
        """Ends a run from another thread; with False, cancels a request that has not ended one."""
        self._open = True
        self._lock = threading.Lock()
        self.serial = 0
        self.running = False
        self.interrupted = False
        _watch(self)

    def interrupt(self) -> None:
        """Stop the run under way."""
        with self._lock:
            if self._open and self.running:
                self.interrupted = True
                self.request(True)

    def begin(self) -> None:
        """Note the start of a run: requests for the last one are dropped."""
        if self.interrupted:
            with self._lock:
                self.interrupted = False
                self.request(False)
        self.serial += 1
        self.running = True

    def replace(self, request: Callable[[bool], object]) -> None:
        """Use another function to end runs."""
        with self._lock:
            self.request = request

    def close(self) -> None:
        """Unregister the engine; waits if the watchdog is just stopping it."""
        with self._lock:
            self._open = False


_watched: "weakref.WeakSet[Watched]" = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _watch(engine: Watched) -> None:
    global _thread
    with _lock:
        _watched.add(engine)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watch_forever, name="emu watchdog", daemon=True)
            _thread.start()


def _watch_forever() -> None:
    global _thread
    before: dict[int, int] = {}
    while True:
        time.sleep(TICK_SECONDS)
        with _lock:
            engines = list(_watched)
            if not engines:
                _thread = None
                return
        now = {id(engine): engine.serial for engine in engines}
        for engine in engines:
            if engine.running and before.get(id(engine)) == engine.serial:
                engine.interrupt()
        before = now
        del engines, engine
