"""Process context: the kernel's work between guest instructions, interruptible at the kernel's own points.

An operation is an ordinary function that calls ``point`` wherever another CPU could run, an interrupt could occur, or
it could fail. Without a driver it runs straight through. A driver runs it as a ``ControlTask`` (greenlet), which stops
at every point until it is resumed.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from emu.errors import EmuError


class PointKind(enum.StrEnum):
    """Kinds of points at which an operation can be interrupted."""

    LOCK = "lock"
    UNLOCK = "unlock"
    TEXT_WRITE = "text write"
    PATCH = "patch"
    IPI = "ipi"
    ALLOC = "alloc"
    GRACE_PERIOD = "grace period"
    PUBLISH = "publish"
    """Before a store of a pointer that CPUs follow without a lock (rcu_assign_pointer)."""
    STORE = "store"
    """Before a write to published guest memory; only on request."""


CAN_FAIL = frozenset({PointKind.ALLOC, PointKind.PATCH})
"""Points at which an operation can be made to fail."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point at which an operation stopped."""

    kind: PointKind
    what: str
    on: object = None
    """Its subject: the Lock, the vCPU's index of an IPI, the grace period, the range written (address, size)."""


class MemoryWatch(Protocol):
    """Observer of guest memory that process context allocates and frees (see ``ProcessContext.memory``)."""

    def allocated(self, address: int, size: int) -> None:
        """Called for new memory, still private to its allocator."""

    def freed(self, address: int, size: int, name: str) -> None:
        """Called for memory that must not be used any more."""


class Deadlock(EmuError):
    """An operation waits for an event that can't happen."""


class Lock:
    """A sleeping lock of process context (a mutex). Acquire and release are points."""

    def __init__(self, process: "ProcessContext", name: str) -> None:
        self._process, self.name = process, name
        self._owner: object | None = None
        self._deferred: list[Callable[[], None]] = []

    @property
    def is_mine(self) -> bool:
        """True if the running operation holds it."""
        return self._owner is getcurrent()

    def defer(self, work: Callable[[], None]) -> None:
        """Run ``work`` as soon as the holder has released it."""
        self._deferred.append(work)

    @property
    def held(self) -> bool:
        """True if it is held."""
        return self._owner is not None

    def acquire(self) -> None:
        """Wait until it is free, then take it. Raises Deadlock if no holder can release it."""
        self._process.point(PointKind.LOCK, self.name, self)
        while self._owner is not None:
            if self._owner is getcurrent() or not self._process.is_driven:
                raise Deadlock(f"{self.name} is held already")
            self._process.point(PointKind.LOCK, self.name, self)
        self._owner = getcurrent()

    def try_acquire(self) -> bool:
        """Take it if it is free."""
        if self._owner is not None:
            return False
        self._owner = getcurrent()
        return True

    def release(self) -> None:
        """Give it back."""
        self._give_back()
        self._process.point(PointKind.UNLOCK, self.name, self)

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.release()
        else:
            # A failing operation is not interrupted while its exception propagates.
            self._give_back()

    def _give_back(self) -> None:
        self._owner = None
        deferred, self._deferred = self._deferred, []
        for work in deferred:
            work()


class ControlTask:
    """An operation that stops at every point. ``at`` is the current point, None before the first and at the end.
    """

    def __init__(self, process: "ProcessContext", operation: Callable[[], Any], name: str) -> None:
        self.name = name
        self.at: Point | None = None
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._greenlet = greenlet(self._run)
        self._operation = operation
        self._process = process

    def _run(self) -> None:
        try:
            self.result = self._operation()
        except Exception as error:
            self.error = error
        self.done = True
        self.at = None

    def step(self) -> Point | None:
        """Resume it up to the next point; None when the operation has ended. Its exception is raised here."""
        if self.done:
            return None
        self._greenlet.parent = getcurrent()
        self._process._running.append(self)
        try:
            self._greenlet.switch()
        finally:
            self._process._running.pop()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.at

    def abandon(self) -> None:
        """End it at its current point: only its ``finally`` clauses run, and their exceptions are ignored.
        """
        self._greenlet.parent = getcurrent()
        with suppress(Exception):
            self._greenlet.throw()
        self.done, self.at = True, None

    def finish(self) -> Any:
        """Run it to its end; returns the operation's result."""
        while not self.done:
            self.step()
        return self.result


class ProcessContext:
    """The points of one kernel."""

    def __init__(self) -> None:
        self._running: list[ControlTask] = []
        self._countdown: dict[PointKind, int] = {}
        self._failure: dict[PointKind, Callable[[str], Exception]] = {}
        self.watchers: list[Callable[[Point], None]] = []
        """Called at every point, before anything else."""
        self.memory: MemoryWatch | None = None
        """Observer of allocated and freed memory."""

    @property
    def is_driven(self) -> bool:
        """True if the running operation stops at its points."""
        return bool(self._running) and self._running[-1]._greenlet is getcurrent()

    def point(self, kind: PointKind, what: str, on: object = None) -> None:
        """Pass a point where an operation can be interrupted, overtaken or made to fail."""
        here = Point(kind, what, on)
        for watcher in self.watchers:
            watcher(here)
        if kind in self._countdown:
            self._countdown[kind] -= 1
            if self._countdown[kind] == 0:
                raise self._failure[kind](what)
        if self.is_driven:
            task = self._running[-1]
            task.at = here
            task._greenlet.parent.switch()

    def stretches(
        self,
        kind: PointKind,
        count: int,
        what: Callable[[int], str],
        *,
        on: Callable[[int], object] = lambda number: None,
        singly: bool = False,
    ) -> Iterator[slice]:
        """``count`` steps, each after its point, in slices to be done without interruption.

        One slice of all steps if points of this kind would have no effect, else slices of one. ``what`` makes the text
        of a step's point from its number, ``on`` its subject. ``singly``: always slices of one.
        """
        if not (singly or self.watchers or kind in self._countdown or self.is_driven):
            yield slice(count)
            return
        for number in range(count):
            self.point(kind, what(number), on(number))
            yield slice(number, number + 1)

    def start(self, operation: Callable[[], Any], name: str = "") -> ControlTask:
        """Create an operation that a driver steps from point to point; it has not begun yet."""
        return ControlTask(self, operation, name or getattr(operation, "__name__", "operation"))

    @contextmanager
    def fail_at(self, kind: PointKind, nth: int, failure: Callable[[str], Exception]) -> Iterator[None]:
        """Make the ``nth`` point (from 1) of a kind raise ``failure(text)`` in the block. ValueError for a bad kind."""
        if kind not in CAN_FAIL:
            raise ValueError(f"a {kind} can't fail; only {', '.join(sorted(CAN_FAIL))}")
        self._countdown[kind], self._failure[kind] = nth, failure
        try:
            yield
        finally:
            del self._countdown[kind], self._failure[kind]
