"""Numbered chunks of a campaign: the result of a chunk depends only on its number, not on the worker or the time."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emu.errors import EmuError
from emu.kernel.errors import KernelError
from emu.schedule.coverage import Coverage
from emu.schedule.run import ScheduleOutcome, Scheduler
from emu.schedule.schedulers.spec import is_divisible, scheduler_for
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.explore.session import ScheduleSession

CHUNK = 100
"""Number of schedules in a chunk."""
SAMPLED = 4
"""Default interval of coverage sampling, in schedules, since coverage costs time."""


@dataclass(frozen=True, slots=True)
class Work:
    """Subject of a campaign. ``coverage``: interval, in schedules, at which coverage is sampled; 0: never."""

    scenario: str
    design: str
    flavour: str = "6.12"
    config: str = "voluntary"
    scheduler: str = "pct:3"
    seed: int = 1
    coverage: int = SAMPLED

    @property
    def is_divisible(self) -> bool:
        """True if the campaign can be divided into chunks. Raises EmuError for an unknown scheduler."""
        return is_divisible(self.scheduler)

    def chunks(self, schedules: int | None) -> "Iterator[Chunk]":
        """The chunks of ``schedules`` schedules (None: without end); an indivisible campaign is one chunk."""
        if not self.is_divisible:
            yield Chunk(0, 0, schedules)
            return
        number = 0
        while schedules is None or number * CHUNK < schedules:
            first = number * CHUNK
            yield Chunk(number, first, CHUNK if schedules is None else min(CHUNK, schedules - first))
            number += 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of ``schedules`` schedules, from the number ``first`` on; None: all that exist."""

    number: int
    first: int
    schedules: int | None


@dataclass(slots=True)
class Count:
    """Number of schedules that were run, and their coverage. ``pruned``: abandoned as redundant; ``cut``: too long."""

    schedules: int = 0
    pruned: int = 0
    cut: int = 0
    steps: int = 0
    coverage: Coverage = field(default_factory=Coverage)

    def ran(self, outcome: ScheduleOutcome) -> None:
        """Add a schedule that was run."""
        self.schedules += 1
        self.pruned += outcome.pruned
        self.cut += outcome.cut
        self.steps += outcome.steps

    def add(self, other: "Count") -> None:
        """Add another count."""
        self.schedules += other.schedules
        self.pruned += other.pruned
        self.cut += other.cut
        self.steps += other.steps
        self.coverage.add(other.coverage)


@dataclass(slots=True)
class ChunkResult:
    """Result of a chunk. ``broken``: the schedule with a violation, which is the last of ``count``.

    ``whole``: the chunk was run to its end. ``exhausted``: the scheduler had no more schedules.
    """

    number: int
    count: Count
    broken: str | None = None
    whole: bool = True
    exhausted: bool = False
    interrupted: bool = False
    """True if Ctrl-C ended the chunk."""


def outcomes(
    session: ScheduleSession, scheduler: Scheduler, schedules: int | None, stops: Callable[[], bool]
) -> Iterator[ScheduleOutcome]:
    """Run up to ``schedules`` schedules; stops early when ``stops`` returns true."""
    number = 0
    while (schedules is None or number < schedules) and not stops():
        if not scheduler.begin():
            return
        outcome = session.run(scheduler)
        scheduler.end(outcome)
        number += 1
        yield outcome


def run_chunk(work: Work, chunk: Chunk, stops: Callable[[], bool] = lambda: False) -> ChunkResult:
    """Run a chunk until its end, a violation, or ``stops``. Raises what ``Session`` raises, and EmuError."""
    with _KEPT.session(work) as session:
        return _run(session, work, chunk, stops)


def _run(session: ScheduleSession, work: Work, chunk: Chunk, stops: Callable[[], bool]) -> ChunkResult:
    scheduler = scheduler_for(work.scheduler, work.seed, first=chunk.first)
    result = ChunkResult(chunk.number, Count())
    count, every = result.count, work.coverage
    session.take_coverage()
    session.covering = bool(every)
    try:
        for outcome in outcomes(session, scheduler, chunk.schedules, stops):
            count.ran(outcome)
            session.covering = bool(every) and count.schedules % every == 0
            if outcome.violation is not None:
                result.broken = outcome.text
                break
        else:
            fewer = chunk.schedules is None or count.schedules < chunk.schedules
            result.exhausted = fewer and not stops()
            result.whole = not fewer or result.exhausted
    except KeyboardInterrupt:
        result.whole, result.interrupted = False, True
    count.coverage = session.take_coverage()
    return result


def run_chunk_elsewhere(work: Work, chunk: Chunk, stops: Callable[[], bool] = lambda: False) -> ChunkResult:
    """``run_chunk`` in another process, with errors that can be pickled: KernelError, EmuError, and TrampolineError for
    all others.
    """
    try:
        return run_chunk(work, chunk, stops)
    except Exception as error:
        if type(error) in (KernelError, EmuError, TrampolineError):
            raise
        raise TrampolineError(f"{type(error).__name__}: {error}") from None


class _KeptSession(threading.local):
    """The session that a host thread used last, kept for its next chunk. Only one thread runs at a time."""

    _running = threading.Lock()

    def __init__(self) -> None:
        self._session: ScheduleSession | None = None
        self._of: tuple[object, ...] = ()

    def session(self, work: Work) -> "_KeptSession":
        """The session for this work, as a context manager."""
        key = (work.scenario, work.design, work.flavour, work.config, bool(work.coverage))
        self._running.acquire()
        try:
            if self._session is None or self._of != key:
                self.close()
                self._session = ScheduleSession(
                    work.scenario, work.design, work.flavour, work.config, covers=bool(work.coverage)
                )
                self._of = key
        except BaseException:
            self._running.release()
            raise
        return self

    def close(self) -> None:
        """Close the kept session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> ScheduleSession:
        assert self._session is not None
        return self._session

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is not None:
                # Its state is unknown: the next chunk starts with a new session.
                self.close()
            elif self._session is not None:
                # Operations in flight must end here: greenlets belong to their thread.
                self._session.world.reset()
        finally:
            self._running.release()


_KEPT = _KeptSession()


def close_session() -> None:
    """Close the session that this host thread keeps for its next chunk."""
    _KEPT.close()
