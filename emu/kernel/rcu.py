"""Grace periods: RCU, RCU-tasks and RCU-tasks-trace, which wait for different readers.

Driven deterministically: a grace period records the tasks that it must wait for and ends when each has passed a
quiescent state; ``poll`` ends those that can end and runs their callbacks in order. Time is virtual.

===============  ==============================================  ==========================================
flavour          waits for                                       quiescent state
===============  ==============================================  ==========================================
RCU              tasks in the middle of kernel code              sleeping voluntarily, returning, or being
                                                                 preempted outside a read section
RCU_TASKS        the same, preempted ones too                    sleeping voluntarily or returning
RCU_TASKS_TRACE  tasks inside rcu_read_lock_trace(), asleep      leaving the section
                 or not
SRCU             readers counted in, asleep or not               leaving the section
===============  ==============================================  ==========================================
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from emu.events import EventStream, GracePeriodBegun, GracePeriodOver
from emu.kernel.process_context import Deadlock, PointKind, ProcessContext
from emu.machine.machine import Machine
from emu.machine.task import Task, TaskState

_T = TypeVar("_T")


class RcuFlavour(enum.StrEnum):
    """RCU flavours, each with its own grace periods."""

    RCU = "rcu"
    RCU_TASKS = "rcu_tasks"
    RCU_TASKS_TRACE = "rcu_tasks_trace"
    SRCU = "srcu"
    """Readers of one per-CPU count, which may sleep (``call_srcu``)."""


GRACE_PERIOD_NS = {
    RcuFlavour.RCU: 10_000_000,
    RcuFlavour.RCU_TASKS: 100_000_000,
    RcuFlavour.RCU_TASKS_TRACE: 20_000_000,
    RcuFlavour.SRCU: 20_000_000,
}
"""Virtual time of a grace period without readers: an assumption, changeable (``Rcu.durations``)."""


@dataclass(eq=False, slots=True)
class GracePeriod:
    """One pending grace period: its readers and its callbacks."""

    flavour: RcuFlavour
    number: int
    holdouts: dict[Task, int]
    callbacks: list[Callable[[], None]]
    counts: list[int]
    """SRCU: the per-CPU addresses at which its readers are counted."""


class Rcu:
    """The grace periods of one kernel. ``nesting`` returns a task's depth of rcu_read_lock or rcu_read_lock_trace."""

    def __init__(
        self, machine: Machine, process: ProcessContext, events: EventStream, nesting: Callable[[Task, RcuFlavour], int]
    ) -> None:
        self._machine, self._process, self._events, self._nesting = machine, process, events, nesting
        self._pending: list[GracePeriod] = []
        self._numbers = dict.fromkeys(RcuFlavour, 0)
        self._callbacks: dict[RcuFlavour, list[Callable[[], None]]] = {flavour: [] for flavour in RcuFlavour}
        self._counts: list[int] = []
        self._bulk: dict[tuple[RcuFlavour, Callable[..., None]], list[Any]] = {}
        self._sharers = 0
        self.begun = 0
        """Number of grace periods of all flavours since the start."""
        self.durations = dict(GRACE_PERIOD_NS)
        self.now_ns = 0
        """Virtual time in nanoseconds, advanced by grace periods."""
        self.automatic = True
        """True if ``settle`` ends grace periods by itself; a scheduler turns that off and calls ``poll``."""

    @property
    def pending(self) -> int:
        """Number of pending grace periods."""
        return len(self._pending)

    @property
    def periods(self) -> "Sequence[GracePeriod]":
        """The pending grace periods, oldest first."""
        return self._pending

    def completed(self, flavour: RcuFlavour) -> int:
        """Number of completed grace periods of a flavour."""
        return self._numbers[flavour] - sum(gp.flavour is flavour for gp in self._pending)

    def call(self, flavour: RcuFlavour, callback: Callable[[], None]) -> None:
        """``call_rcu``, ``call_rcu_tasks``, ``call_rcu_tasks_trace``: run ``callback`` after a grace period."""
        self._callbacks[flavour].append(callback)
        self._begin_wanted()

    def call_bulk(self, flavour: RcuFlavour, callback: Callable[[list[_T]], None], item: _T) -> None:
        """As ``call``, for items that are freed together: items of the same grace period are passed in one list
        (``kvfree_rcu``).
        """
        items = self._bulk.get((flavour, callback))
        if items is None:
            items = self._bulk[flavour, callback] = []
            self._callbacks[flavour].append(partial(callback, items))
        items.append(item)
        self._begin_wanted()

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Within the block, new callbacks share one grace period of each flavour, which begins when the block ends."""
        self._sharers += 1
        try:
            yield
        finally:
            self._sharers -= 1
            self._begin_wanted()

    def call_srcu(self, count: int, callback: Callable[[], None]) -> None:
        """``call_srcu`` for readers that count themselves in and out at a per-CPU address: run ``callback`` when the
        counts of all CPUs add up to 0. No new readers may start.
        """
        self._counts.append(count)
        self.call(RcuFlavour.SRCU, callback)

    def synchronize(self, flavour: RcuFlavour) -> None:
        """Wait for a grace period. Raises Deadlock if no reader can continue meanwhile."""
        period = self._begin(flavour, [], [])
        self._process.point(PointKind.GRACE_PERIOD, f"synchronize_{flavour}", period)
        while period in self._pending:
            # If a scheduler ends grace periods, a driven operation only waits.
            waits = self._process.is_driven and not self.automatic
            if waits or (not self.poll() and period in self._pending):
                if not self._process.is_driven:
                    names = ", ".join(task.name for task in period.holdouts)
                    raise Deadlock(f"synchronize_{flavour} waits for {names}")
                self._process.point(PointKind.GRACE_PERIOD, f"synchronize_{flavour}", period)

    def poll(self) -> int:
        """End the grace periods whose readers have all finished and run their callbacks; returns the number ended.

        New callbacks of these callbacks share grace periods.
        """
        ended = 0
        with self.sharing():
            for period in list(self._pending):
                # A callback may have ended other grace periods.
                if period in self._pending and self._is_over(period):
                    self._end(period)
                    ended += 1
        return ended

    def ready(self) -> "list[GracePeriod]":
        """Record quiescent states; returns the grace periods that can end now, the oldest of each flavour."""
        found: dict[RcuFlavour, GracePeriod] = {}
        for period in self._pending:
            if self._is_over(period):
                found.setdefault(period.flavour, period)
        return list(found.values())

    def note_quiescence(self) -> None:
        """Record quiescent states: a task returned, slept or was preempted, and may run again."""
        for period in self._pending:
            self._is_over(period)

    def can_end(self) -> "list[GracePeriod]":
        """As ``ready``, without recording quiescent states: has no side effects."""
        holdouts = [(period, dict(period.holdouts)) for period in self._pending]
        found = self.ready()
        for period, tasks in holdouts:
            period.holdouts.clear()
            period.holdouts.update(tasks)
        return found

    def end_oldest(self, flavour: RcuFlavour) -> None:
        """End the oldest grace period of a flavour that can end, and run its callbacks. Deadlock if none can."""
        period = next((period for period in self.ready() if period.flavour is flavour), None)
        if period is None:
            raise Deadlock(f"no grace period of {flavour} can end")
        with self.sharing():
            self._end(period)

    def is_pending(self, period: object) -> bool:
        """True if a grace period is pending."""
        return period in self._pending

    def _end(self, period: "GracePeriod") -> None:
        self._pending.remove(period)
        self.now_ns += self.durations[period.flavour]
        self._events.emit(GracePeriodOver(period.flavour, period.number))
        for callback in period.callbacks:
            callback()

    def settle(self) -> None:
        """End everything that can end, including grace periods that callbacks start."""
        if self.automatic:
            while self.poll():
                pass

    def _begin_wanted(self) -> None:
        if self._sharers:
            return
        self._bulk.clear()
        for flavour, callbacks in self._callbacks.items():
            if callbacks:
                self._callbacks[flavour] = []
                counts: list[int] = []
                if flavour is RcuFlavour.SRCU:
                    counts, self._counts = self._counts, counts
                self._begin(flavour, callbacks, counts)

    def _begin(
        self, flavour: RcuFlavour, callbacks: list[Callable[[], None]], counts: list[int]
    ) -> GracePeriod:
        self._numbers[flavour] += 1
        self.begun += 1
        srcu = flavour is RcuFlavour.SRCU
        tasks = [] if srcu else [task for task in self._machine.tasks if self._is_reader(task, flavour)]
        noted = {task: task.voluntary_switches for task in tasks}
        period = GracePeriod(flavour, self._numbers[flavour], noted, callbacks, counts)
        self._pending.append(period)
        self._events.emit(GracePeriodBegun(flavour, period.number, len(tasks)))
        return period

    def _readers(self, counts: Iterable[int]) -> bool:
        """True if a reader is counted in at one of these per-CPU addresses."""
        bases = [vcpu.gs_base for vcpu in self._machine.vcpus]
        read = self._machine.read_u64
        return any(sum(read(base + count) for base in bases) % (1 << 64) for count in counts)

    def _is_reader(self, task: Task, flavour: RcuFlavour) -> bool:
        if flavour is RcuFlavour.RCU_TASKS_TRACE:
            return task.state is not TaskState.DONE and self._nesting(task, flavour) > 0
        if not task.in_kernel or task.state is TaskState.SLEEPING:
            return False
        preempted = task.state is TaskState.RUNNABLE
        return flavour is RcuFlavour.RCU_TASKS or not preempted or self._nesting(task, flavour) > 0

    def _is_over(self, period: GracePeriod) -> bool:
        if period.counts:
            return not self._readers(period.counts)
        for task, switches in list(period.holdouts.items()):
            if task.voluntary_switches > switches or not self._is_reader(task, period.flavour):
                if period.flavour is RcuFlavour.RCU_TASKS_TRACE and self._is_reader(task, period.flavour):
                    continue
                del period.holdouts[task]
        return not period.holdouts
