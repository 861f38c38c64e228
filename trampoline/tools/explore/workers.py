"""Workers that run a campaign's chunks: this process, or several processes on this machine."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from typing import Protocol

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.explore.chunk import Chunk, ChunkResult, Work, close_session, run_chunk, run_chunk_elsewhere


class Workers(Protocol):
    """Runs chunks, in any order, and returns the result of each once."""

    @property
    def slots(self) -> int:
        """Number of chunks that keep the workers busy."""
        ...

    def begin(self, work: Work, seconds: float | None) -> None:
        """Start with the chunks of ``work``; chunks in flight end early after ``seconds``."""

    def submit(self, chunk: Chunk) -> None:
        """Run a chunk."""

    def finished(self, timeout: float | None) -> list[ChunkResult]:
        """New results since the last call; waits for at least one, up to ``timeout`` seconds."""
        ...

    @property
    def under_way(self) -> int:
        """Number of chunks whose results are still to come."""
        ...

    def stop(self) -> None:
        """End the chunks in flight early, or abandon them."""

    def close(self) -> None:
        """Free all resources."""


class ThisProcess:
    """Runs chunks in this process, in order."""

    slots = 1

    def __init__(self) -> None:
        self._work: Work | None = None
        self._waiting: list[Chunk] = []
        self._ends = 0.0

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def begin(self, work: Work, seconds: float | None) -> None:
        self._work, self._waiting = work, []
        self._ends = float("inf") if seconds is None else time.monotonic() + seconds

    def submit(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def finished(self, timeout: float | None) -> list[ChunkResult]:
        assert self._work is not None
        return [run_chunk(self._work, self._waiting.pop(0), lambda: time.monotonic() >= self._ends)]

    def stop(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        close_session()


class Processes:
    """Runs chunks in worker processes of this machine, which live until ``close`` and serve any number of campaigns.

    The processes import the main module, as those of ``multiprocessing`` do, so a script needs
    ``if __name__ == "__main__"``.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        context = get_context("spawn")
        self._stopping: Event = context.Event()
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin_process, initargs=(self._stopping,)
        )
        self._has_started = False
        self._futures: set[Future[ChunkResult]] = set()
        self._work: Work | None = None
        self._ends: float | None = None

    @property
    def slots(self) -> int:
        """Two chunks for each process: one that runs and one that waits."""
        return 2 * self._jobs

    @property
    def under_way(self) -> int:
        return len(self._futures)

    def begin(self, work: Work, seconds: float | None) -> None:
        """As in Workers; the time starts once the processes have started. Raises TrampolineError if one has died."""
        self._start()
        # Chunks left over from an error or Ctrl-C.
        self.stop()
        wait(self._futures)
        self._futures.clear()
        self._stopping.clear()
        self._work, self._ends = work, None if seconds is None else time.monotonic() + seconds

    def _start(self) -> None:
        if self._has_started:
            return
        with _no_interrupts():
            starting = [self._pool.submit(os.getpid) for _ in range(self._jobs)]
        try:
            for started in starting:
                started.result()
        except BrokenProcessPool:
            raise TrampolineError("a worker process has died") from None
        self._has_started = True

    def submit(self, chunk: Chunk) -> None:
        assert self._work is not None
        with _no_interrupts():
            self._futures.add(self._pool.submit(_run_here, self._work, chunk, self._ends))

    def finished(self, timeout: float | None) -> list[ChunkResult]:
        """As in Workers. Raises TrampolineError if a process has died."""
        done, self._futures = wait(self._futures, timeout, FIRST_COMPLETED)
        try:
            return [future.result() for future in done if not future.cancelled()]
        except BrokenProcessPool:
            raise TrampolineError("a worker process has died") from None

    def stop(self) -> None:
        self._stopping.set()
        for future in list(self._futures):
            if future.cancel():
                self._futures.discard(future)

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(cancel_futures=True)


_stopping: Event | None = None
"""In a worker process: set to end the present chunk."""


def _begin_process(stopping: Event) -> None:
    global _stopping
    _stopping = stopping
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_here(work: Work, chunk: Chunk, ends: float | None) -> ChunkResult:
    assert _stopping is not None
    return run_chunk_elsewhere(work, chunk, _stops(_stopping, ends))


def _stops(stopping: Event, ends: float | None) -> Callable[[], bool]:
    # All processes of a machine share its monotonic clock.
    return lambda: stopping.is_set() or (ends is not None and time.monotonic() >= ends)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes started within the block: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processors() -> int:
    """Number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
