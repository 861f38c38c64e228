"""Steps of threads under a debugger, and reasons to end a run of them early."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product

from emu.debug.breakpoints import Breakpoint, DataAccess
from emu.debug.errors import DebugError
from emu.debug.stop_addresses import StopAddresses
from emu.errors import GuestFault, NotMapped
from emu.events import Event
from emu.kernel.checkpoint import Checkpoint
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import GracePeriod
from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT
from emu.machine.engine import DataWatch
from emu.machine.paging import NX, frame_of
from emu.machine.registers import SAVED
from emu.machine.task import TaskState
from emu.machine.vcpu import RunStopReason as TaskStop
from emu.machine.vcpu import Vcpu
from emu.threads.kernel_threads import KernelThreads
from emu.threads.thread import OperationThread, TaskThread, Thread


@dataclass(frozen=True, slots=True)
class StepsMade:
    """Steps that a thread made. ``error``: fault of the next one; ``access``: the watched access of the last one;
    ``blocked``: why it can't make another one.
    """

    steps: int
    error: Exception | None = None
    access: DataAccess | None = None
    blocked: str = ""


class DebuggedThreads(KernelThreads):
    """The threads of one kernel under a debugger; each can make a number of steps."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.position = 0
        self.threads: list[Thread] = []
        self.marks = StopAddresses(kernel.machine)
        for vcpu in kernel.machine.vcpus:
            vcpu.engine.hold(held=True)
        self.stops_at_events: list[Breakpoint] = []
        """Called for each event while moves are made for the first time."""
        self._watches: list[tuple[Vcpu, DataAccess, DataWatch]] = []
        self._fresh: list[tuple[int, Event]] = []
        self._is_first_time = False
        self._running: Vcpu | None = None
        self._allowed = self._made = 0
        self._cut: int | None = None
        self._python: Checkpoint | None = None
        self._end_subscription = kernel.events.subscribe(self._on_event)

    def close(self) -> None:
        """Release the kernel in its current state; operations under way are dropped."""
        for thread in self.threads:
            if isinstance(thread, OperationThread):
                thread.abandon()
        self.watch(())
        super().close()
        self.marks.close()
        for vcpu in self.kernel.machine.vcpus:
            vcpu.engine.hold(held=False)
        with suppress(ValueError):
            self._end_subscription()

    # Steps ----------------------------------------------------------------------------------------------------------

    def _go(self, thread: Thread, steps: int) -> StepsMade:
        if isinstance(thread, TaskThread):
            return self._go_task(thread, steps)
        assert isinstance(thread, OperationThread)
        return self._go_operation(thread, steps)

    def _go_task(self, thread: TaskThread, steps: int) -> StepsMade:
        task = thread.task
        assert task is not None
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        if vcpu.task is not task:
            vcpu.switch_to(task)
        if vcpu.index in self.trapped:
            return self._step_into_entry(vcpu)
        engine, entries = vcpu.engine, vcpu.host_entries
        self._running, self._allowed, self._cut = vcpu, steps, None
        access: DataAccess | None = None
        try:
            stop = self.advance(thread, vcpu, steps)
        except Exception as error:
            left, access = self._left(vcpu, None)
            left = engine.left if left is None else left
            if not (isinstance(error, GuestFault) and error.access == "fetch"):
                return StepsMade(max(steps - left - 1, 0), error)
            # The instruction that could not be fetched was not counted: all that were counted are done.
            if left > 0:
                return StepsMade(steps - left, error)
            task.state, task.in_kernel = TaskState.RUNNABLE, True
            vcpu.switch_to(task)
            return StepsMade(steps, access=access)
        left, access = self._left(vcpu, self._cut)
        if left is not None:
            made = steps - left
        elif stop is None:
            made = steps + engine.left + 1
        else:
            made = steps - engine.left
        if stop is None:
            if vcpu.regs.rip == self.kernel.machine.host_calls.return_address:
                self._end_task(thread, vcpu)
        elif vcpu.index not in self.trapped:
            made -= stop.reason is TaskStop.RETURNED
            self._python = None
        if vcpu.host_entries != entries:
            self._python = None
        return StepsMade(made, access=access)

    def _step_into_entry(self, vcpu: Vcpu) -> StepsMade:
        self._running, self._allowed, self._made, self._cut = None, 1, 1, None
        self._python = None
        return StepsMade(1) if self.enter_int3(vcpu) else StepsMade(0, vcpu.unanswered())

    def is_trapped(self, thread: Thread) -> bool:
        """True if a task has executed an int3 whose entry has not run yet."""
        vcpu = self.vcpu_of(thread)
        return vcpu is not None and vcpu.index in self.trapped

    def _left(self, vcpu: Vcpu, cut: int | None) -> tuple[int | None, DataAccess | None]:
        """Steps left at the end of a run, and the access that ended it."""
        access = None
        for where, watched, watch in self._watches:
            if where is vcpu and watch.left is not None:
                if cut is None or watch.left > cut:
                    cut, access = watch.left, watched
                watch.clear()
        return cut, access

    def _go_operation(self, thread: OperationThread, steps: int) -> StepsMade:
        self._python, self._running, self._cut = None, None, None
        made = 0
        while made < steps and not thread.is_done and self._cut is None:
            why = self.waits_for(thread.point)
            if why:
                return StepsMade(made, blocked=why)
            self._made = made + 1
            try:
                thread.step()
            except Exception as broken:
                return StepsMade(made, broken)
            made += 1
        return StepsMade(made)

    def _end_task(self, thread: TaskThread, vcpu: Vcpu) -> None:
        """End a task whose outermost function has returned to a stub, which is not a guest instruction."""
        self.advance(thread, vcpu, 1)
        self._python = None

    def _on_event(self, event: Event) -> None:
        if not self._is_first_time:
            return
        vcpu = self._running
        made = self._made if vcpu is None else self._allowed - (vcpu.left if self._cut is None else self._cut)
        self._fresh.append((self.position + made, event))
        if self._cut is None and any(breakpoint.wants(event) for breakpoint in self.stops_at_events):
            self._cut = 0 if vcpu is None else vcpu.left
            if vcpu is not None:
                vcpu.cut_short()

    # Threads that can continue --------------------------------------------------------------------------------------

    def vcpu_of(self, thread: Thread) -> Vcpu | None:
        """The vCPU that runs a task; None if none does."""
        return thread.vcpu if isinstance(thread, TaskThread) else None

    def register(self, thread: TaskThread, name: str = "rip") -> int:
        """A register of a task, on a vCPU or saved. DebugError if the task does not exist."""
        vcpu, task = thread.vcpu, thread.task
        if vcpu is not None:
            return int(getattr(vcpu.regs, name))
        if task is None:
            raise DebugError(f"{thread.name} does not exist here")
        if name == "rip" and task.entry is not None:
            return task.entry[0]
        return task.register(name)

    def grace_periods(self) -> list[GracePeriod]:
        """The grace periods that can end now, the oldest of each flavour. Does not change their state."""
        return self.kernel.rcu.can_end()

    # Changes by the user --------------------------------------------------------------------------------------------

    def set_register(self, thread: TaskThread, name: str, value: int) -> None:
        """Change a register of a task; gs_base is its vCPU's."""
        vcpu, task = thread.vcpu, thread.task
        if vcpu is None:
            assert task is not None
            task.registers[SAVED.index(name)] = value
        elif name == "gs_base":
            vcpu.gs_base = value
        else:
            setattr(vcpu.regs, name, value)

    def write_memory(self, address: int, data: bytes) -> None:
        """Change guest memory; text for every vCPU at once."""
        machine = self.kernel.machine
        entry = machine.page_entry(address)
        if not entry or entry & NX:
            machine.write(address, data)
            return
        pending = [bool(vcpu.view.pending) for vcpu in machine.vcpus]
        machine.write_text(address, data)
        for vcpu, others in zip(machine.vcpus, pending, strict=True):
            if others:
                vcpu.see_new(address)
            else:
                vcpu.serialize()

    # Watching data --------------------------------------------------------------------------------------------------

    def watch(self, accesses: Iterable[DataAccess]) -> None:
        """Watch these ranges on every vCPU, and no others."""
        wanted = list(dict.fromkeys(accesses))
        for vcpu, access, watch in list(self._watches):
            if access not in wanted:
                watch.remove()
                self._watches.remove((vcpu, access, watch))
        known = {access for _, access, _ in self._watches}
        for access in wanted:
            if access not in known:
                for vcpu, (start, size) in product(self.kernel.machine.vcpus, self._physical(access)):
                    reads, writes = "r" in access.how, "w" in access.how
                    self._watches.append((vcpu, access, vcpu.engine.watch(start, size, reads=reads, writes=writes)))

    def _physical(self, access: DataAccess) -> Iterator[tuple[int, int]]:
        """Physical (address, size) of the pages of a range."""
        at, end = access.start, access.start + access.size
        while at < end:
            size = min(end, (at | PAGE_MASK) + 1) - at
            entry = self.kernel.machine.page_entry(at)
            if not entry:
                raise NotMapped(at)
            yield (frame_of(entry) << PAGE_SHIFT) + (at & PAGE_MASK), size
            at += size

    @contextmanager
    def stopping(self, thread: TaskThread, marked: Collection[int]) -> Iterator[bool]:
        """Context in which runs of a task end at marked addresses, and after accesses to watched data; yields True if
        the task is at a marked address: its first step must then be made separately.
        """
        engine = self.kernel.machine.vcpus[thread.cpu].engine
        rip = self.register(thread)
        is_marked = rip in marked and self.marks.covers(rip)
        if is_marked:
            self.marks.lift(rip)
        engine.hold(held=False)
        try:
            yield is_marked
        finally:
            engine.hold(held=True)
            if is_marked:
                self.marks.put_back(rip)
