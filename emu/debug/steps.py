"""How threads make their steps, and where these end early."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product

from emu.debug.actions import EndGracePeriod
from emu.debug.breakpoints import Breakpoint, DataAccess
from emu.debug.errors import DebugError
from emu.debug.stop_addresses import StopAddresses
from emu.debug.threads import OperationThread, TaskThread, Thread
from emu.errors import GuestFault, NotMapped
from emu.events import Event
from emu.kernel.checkpoint import Checkpoint
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import GracePeriod, RcuFlavour
from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT
from emu.machine.engine import DataWatch
from emu.machine.paging import frame_of
from emu.machine.task import TaskState
from emu.machine.vcpu import RunStopReason as TaskStop
from emu.machine.vcpu import Vcpu


@dataclass(frozen=True, slots=True)
class StepsMade:
    """Steps that a thread made. ``error``: it faulted in the next one; ``access``: the last one touched what is
    watched; ``blocked``: why it can't make another one.
    """

    steps: int
    error: Exception | None = None
    access: DataAccess | None = None
    blocked: str = ""


class KernelThreads:
    """The threads of one kernel, each of which can be let go on for some steps."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.position = 0
        self.threads: list[Thread] = []
        self.marks = StopAddresses(kernel.machine)
        for vcpu in kernel.machine.vcpus:
            vcpu.engine.hold(held=True)
        self.stops_at_events: list[Breakpoint] = []
        """Those that are asked about each event while moves are made for the first time."""
        self._watches: list[tuple[Vcpu, DataAccess, DataWatch]] = []
        self._fresh: list[tuple[int, Event]] = []
        self._is_first_time = False
        self._running: Vcpu | None = None
        self._allowed = self._made = 0
        self._cut: int | None = None
        self._python: Checkpoint | None = None
        self._trapped: set[int] = set()
        kernel.machine.on_int3.insert(0, self._on_int3)
        self._end_subscription = kernel.events.subscribe(self._on_event)

    def close(self) -> None:
        """Let go of the kernel as it stands; operations under way are dropped."""
        for thread in self.threads:
            if isinstance(thread, OperationThread):
                thread.abandon()
        self.watch(())
        self.kernel.machine.on_int3.remove(self._on_int3)
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
        assert thread.cpu is not None
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        if vcpu.task is not task:
            vcpu.switch_to(task)
        if vcpu.index in self._trapped:
            return self._enter_int3(vcpu)
        engine, entries = vcpu.engine, vcpu.host_entries
        self._running, self._allowed, self._cut = vcpu, steps, None
        access: DataAccess | None = None
        try:
            stop = vcpu.advance(steps)
        except Exception as error:
            left, access = self._left(vcpu, None)
            left = engine.left if left is None else left
            if not (isinstance(error, GuestFault) and error.access == "fetch"):
                return StepsMade(max(steps - left - 1, 0), error)
            # The instruction that is not there was not counted: all that were are done.
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
                self._end_task(vcpu)
        elif vcpu.index in self._trapped:
            # It stopped to let the entry behind its trap be a step of its own: it has not left the CPU.
            vcpu.switch_to(task)
        else:
            made -= stop.reason is TaskStop.RETURNED
            self._left_cpu()
        if vcpu.host_entries != entries:
            self._python = None
        return StepsMade(made, access=access)

    def _on_int3(self, vcpu: Vcpu) -> bool:
        """An int3 was executed: the entry is a step of its own, with interrupts off."""
        if vcpu.is_nested or vcpu is not self._running:
            return False
        self._trapped.add(vcpu.index)
        vcpu.preempt()
        return True

    def _enter_int3(self, vcpu: Vcpu) -> StepsMade:
        self._running, self._allowed, self._made, self._cut = None, 1, 1, None
        self._python = None
        answers = [answer for answer in self.kernel.machine.on_int3 if answer != self._on_int3]
        if not any(answer(vcpu) for answer in answers):
            return StepsMade(0, vcpu.unanswered())
        self._trapped.discard(vcpu.index)
        return StepsMade(1)

    def is_trapped(self, thread: Thread) -> bool:
        """Whether a task has executed an int3 whose entry has not run yet."""
        vcpu = self.vcpu_of(thread)
        return vcpu is not None and vcpu.index in self._trapped

    def _left(self, vcpu: Vcpu, cut: int | None) -> tuple[int | None, DataAccess | None]:
        """Steps that were left when a run was to end, and which access ended it."""
        access = None
        for where, watched, watch in self._watches:
            if where is vcpu and watch.left is not None:
                if cut is None or watch.left > cut:
                    cut, access = watch.left, watched
                watch.clear()
        return cut, access

    def _go_operation(self, thread: OperationThread, steps: int) -> StepsMade:
        self._python, self._running, self._cut = None, None, None
        control = thread.control
        if control is None:
            control = thread.control = self.kernel.process.start(thread.do, thread.name)
        made = 0
        while made < steps and not thread.is_done and self._cut is None:
            why = self._waits_for(thread)
            if why:
                return StepsMade(made, blocked=why)
            error: Exception | None = None
            self._made = made + 1
            try:
                thread.step(control)
            except KernelError as answer:
                error = answer
            except Exception as broken:
                return StepsMade(made, broken)
            made += 1
            if control.done:
                thread.finish(control, error)
        return StepsMade(made)

    def _end_task(self, vcpu: Vcpu) -> None:
        """The outermost function has returned to a stub, which is none of the guest's instructions."""
        vcpu.advance(1)
        self._left_cpu()

    def _left_cpu(self) -> None:
        self._python = None
        self._note_quiescence()

    def _note_quiescence(self) -> None:
        if self.kernel.rcu.pending:
            self.kernel.rcu.ready()

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

    # What can go on -------------------------------------------------------------------------------------------------

    def vcpu_of(self, thread: Thread) -> Vcpu | None:
        """Where a task is at present; None where no vCPU runs it."""
        if not isinstance(thread, TaskThread) or thread.cpu is None:
            return None
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        return vcpu if vcpu.task is thread.task else None

    def register(self, thread: TaskThread, name: str = "rip") -> int:
        """A register of a task, wherever it is."""
        vcpu, task = self.vcpu_of(thread), thread.task
        if vcpu is not None:
            return int(getattr(vcpu.regs, name))
        if task is None:
            raise DebugError(f"{thread.name} does not exist here")
        if name == "rip" and task.entry is not None:
            return task.entry[0]
        return task.register(name)

    def why_blocked(self, thread: Thread) -> str:
        """Why a thread that is not done can't make a step; nothing where it can."""
        if isinstance(thread, OperationThread):
            return self._waits_for(thread)
        assert isinstance(thread, TaskThread)
        assert thread.task is not None
        assert thread.cpu is not None
        if thread.task.state is TaskState.SLEEPING:
            return "asleep"
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        if vcpu.task is not thread.task and vcpu.task is not vcpu.idle:
            return f"cpu {thread.cpu} runs {vcpu.task.name}"
        return ""

    def _waits_for(self, thread: OperationThread) -> str:
        return thread.waits_for(self.kernel.rcu.is_pending, self._trapped.__contains__)

    def grace_periods(self) -> list[GracePeriod]:
        """The grace periods that can end now, the oldest of each kind. Nothing is noted by looking."""
        return self.kernel.rcu.can_end()

    def end_grace_period(
        self,
        flavour: RcuFlavour,
        number: int,
        thread: Callable[[int, str, Callable[[], None]], OperationThread] = OperationThread,
    ) -> EndGracePeriod:
        """Ends the oldest grace period of a kind that can end: a ``thread`` runs its callbacks."""
        rcu, chosen = self.kernel.rcu, list[GracePeriod]()

        def choose() -> None:
            chosen[:] = [period for period in rcu.ready() if period.flavour is flavour]

        return EndGracePeriod(
            thread(number, f"callbacks of {flavour}", lambda: rcu.end(chosen[0])), choose
        )

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
        """Where the pages of a range are in guest RAM."""
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
        """Within it runs of a task end where it is marked, and behind accesses to what is watched; gives whether it is
        marked where the task is: the first step is to be made by itself.
        """
        assert thread.cpu is not None
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
