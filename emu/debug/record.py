"""A kernel at a position on the line of time, and how to get to others."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from emu.checkpoint import Checkpoint
from emu.debug.breakpoints import Access, Breakpoint
from emu.debug.errors import DebugError
from emu.debug.marks import Marks
from emu.debug.moves import Adopt, Begin, EndGracePeriod, Go, Move, Place, Preempt, SetRegister, Wake, WriteMemory
from emu.debug.threads import OperationThread, TaskThread, Thread
from emu.debug.timeline import Timeline
from emu.engine import DataWatch, Exit
from emu.errors import GuestFault
from emu.events import Event
from emu.faults import INT3
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import GracePeriod, RcuFlavour
from emu.paging import NX
from emu.registers import SAVED
from emu.snapshot import Snapshot
from emu.task import TaskState
from emu.vcpu import StopReason as TaskStop
from emu.vcpu import Vcpu

SPACING = 4000
"""Moves between two checkpoints, at first: what going back makes again."""
MOST_CHECKPOINTS = 128
"""Beyond these every second one is dropped, and the distance between new ones doubled."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Steps that a thread made. ``error``: it faulted in the next one; ``access``: the last one touched what is
    watched; ``blocked``: why it can't make another one.
    """

    steps: int
    error: Exception | None = None
    access: Access | None = None
    blocked: str = ""


@dataclass(slots=True)
class _Quick:
    """A task that has just made a single step at the end of the line, and stands at ``rip``: it may well make another
    one. ``due``: where the next checkpoint is to be.
    """

    thread: TaskThread
    vcpu: Vcpu
    rip: int
    due: int


@dataclass(frozen=True, slots=True)
class _Kept:
    position: int
    snapshot: Snapshot
    python: Checkpoint
    threads: tuple[tuple[Thread, object], ...]


class Record:
    """Moves and checkpoints of one kernel. ``roots``: Python objects beside the kernel that moves change."""

    def __init__(self, kernel: Kernel, roots: Iterable[object]) -> None:
        self.kernel = kernel
        self._roots = list(roots)
        self.timeline = Timeline()
        self.position = 0
        self.threads: list[Thread] = []
        self.events: list[tuple[int, Event]] = []
        """Of the whole line, each with the position behind the move in which it happened."""
        self.marks = Marks(kernel.machine)
        for vcpu in kernel.machine.vcpus:
            vcpu.engine.hold(held=True)
        self.stops_at_events: list[Breakpoint] = []
        """Those that are asked about each event while moves are made for the first time."""
        self._watches: list[tuple[Vcpu, Access, DataWatch]] = []
        self._fresh: list[tuple[int, Event]] = []
        self._is_first_time = False
        self._running: Vcpu | None = None
        self._allowed = self._made = 0
        self._cut: int | None = None
        self._python: Checkpoint | None = None
        self._quick: _Quick | None = None
        self._outside = kernel.machine.host_calls.return_address
        self._spacing = SPACING
        self._end_subscription = kernel.events.subscribe(self._on_event)
        self._kept: list[_Kept] = []
        self._keep()

    def close(self) -> None:
        """Let go of the kernel as it stands; operations under way are dropped."""
        for thread in self.threads:
            if isinstance(thread, OperationThread):
                thread.abandon()
        self.watch(())
        self.marks.close()
        for vcpu in self.kernel.machine.vcpus:
            vcpu.engine.hold(held=False)
        with suppress(ValueError):
            self._end_subscription()

    # Making moves ---------------------------------------------------------------------------------------------------

    def make(self, move: Move) -> None:
        """Make a move that is no step, for the first time. What it raises leaves everything as it was."""
        self._quick = None
        self._fresh, self._is_first_time = [], True
        self._running, self._made = None, 1
        try:
            self._perform(move)
        except Exception:
            self._go_back_to(self.position)
            raise
        finally:
            self._is_first_time = False
        self._note(move, 1)
        if isinstance(move, Begin) and isinstance(move.thread, OperationThread):
            # What nobody could reach until now has not been changed since the start.
            for python in {id(kept.python): kept.python for kept in self._kept}.values():
                python.extend(move.thread.roots())

    def quick_step(self, thread: Thread | None) -> bool:
        """One step of a thread in the ordinary case: where the last thing that happened was one, and where it turns
        out to be an instruction like any other. False: nothing was done.
        """
        quick = self._quick
        if quick is None or quick.thread is not thread or self.position >= quick.due:
            return False
        vcpu = quick.vcpu
        vcpu.engine.limit(1)
        reached, rip = vcpu.execute(quick.rip)
        if reached is Exit.LIMIT:
            quick.rip = rip
            self.position += 1
            self.timeline.again()
            if rip == self._outside:
                self._quick = None
                self._end_task(vcpu)
            return True
        self._quick = None
        if reached is Exit.HALT or (reached is Exit.INTERRUPT and vcpu.engine.interrupt_number == INT3):
            # These do nothing but end the run: they are made again, and answered.
            vcpu.regs.rip = rip - 1
        elif reached is not Exit.TICK:
            vcpu.forget_exception()
        return False

    def go(self, thread: Thread, steps: int) -> Ran:
        """Let a thread make so many steps at most, for the first time; fewer where a mark, an event, or what is watched
        says so, and where a checkpoint is due.
        """
        self._quick = None
        if isinstance(thread, OperationThread) and thread.control is None and self._kept[-1].position != self.position:
            self._keep()
        steps = min(steps, max(self._due - self.position, 1))
        self._fresh, self._is_first_time = [], True
        try:
            ran = self._go(thread, steps)
        finally:
            self._is_first_time = False
        if ran.steps:
            self._note(Go(thread), ran.steps)
        if ran.error is not None:
            ran = self._undo_fault(thread, ran, ran.error)
        elif self.position >= self._due:
            self._keep()
        return ran

    def _note(self, move: Move, count: int) -> None:
        new = self.timeline.add(self.position, move, count)
        if new is not None:
            while self.events and self.events[-1][0] > new:
                self.events.pop()
            while self._kept[-1].position > new:
                self._kept.pop()
            self.events += [found for found in self._fresh if found[0] > new]
        self.position += count

    def _undo_fault(self, thread: Thread, ran: Ran, error: Exception) -> Ran:
        """Back to the state before the step that faulted."""
        self._go_back_to(self.position)
        if isinstance(error, GuestFault) and isinstance(thread, TaskThread) and error.rip != self.register(thread):
            # The engine stopped before it counted the instruction in front.
            with suppress(Exception):
                if self._go(thread, 1).error is None:
                    self._fresh = []
                    self._note(Go(thread), 1)
                    return Ran(ran.steps + 1, error)
            self._go_back_to(self.position)
        return ran

    def _perform(self, move: Move) -> None:
        """A move that is no step."""
        machine = self.kernel.machine
        self._python = None
        if isinstance(move, EndGracePeriod):
            move.choose()
        if isinstance(move, Begin | EndGracePeriod):
            thread: Thread = move.thread
            if isinstance(thread, TaskThread):
                task = self.kernel.task(thread.name, thread.function, *thread.args)
                thread.task = task
                assert thread.cpu is not None
                vcpu = machine.vcpus[thread.cpu]
                if vcpu.task is vcpu.idle:
                    vcpu.switch_to(task)
            self.threads.append(thread)
        elif isinstance(move, WriteMemory):
            self._write(move.address, move.data)
        elif isinstance(move, Adopt):
            vcpu = machine.vcpus[move.cpu]
            if move.address is None:
                vcpu.serialize()
            else:
                vcpu.see_new(move.address)
        elif isinstance(move, SetRegister):
            self._set_register(move)
        elif isinstance(move, Preempt):
            self._preempt(move.thread)
        elif isinstance(move, Wake):
            assert move.thread.task is not None
            move.thread.task.wake()
        elif isinstance(move, Place):
            move.thread.cpu = move.cpu
        else:
            raise AssertionError(move)

    def _preempt(self, thread: TaskThread) -> None:
        vcpu = self.vcpu_of(thread)
        if vcpu is None:
            raise DebugError(f"{thread.name} is on no cpu")
        vcpu.yield_task()
        self._note_quiescence()

    def _write(self, address: int, data: bytes) -> None:
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

    def _set_register(self, move: SetRegister) -> None:
        vcpu, task = self.vcpu_of(move.thread), move.thread.task
        if vcpu is not None:
            if move.name == "gs_base":
                vcpu.gs_base = move.value
            else:
                setattr(vcpu.regs, move.name, move.value)
        elif task is not None:
            task.registers[SAVED.index(move.name)] = move.value

    # Steps ----------------------------------------------------------------------------------------------------------

    def _go(self, thread: Thread, steps: int) -> Ran:
        if isinstance(thread, TaskThread):
            return self._go_task(thread, steps)
        assert isinstance(thread, OperationThread)
        return self._go_operation(thread, steps)

    def _go_task(self, thread: TaskThread, steps: int) -> Ran:
        task = thread.task
        assert task is not None
        assert thread.cpu is not None
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        if vcpu.task is not task:
            vcpu.switch_to(task)
        engine, entries = vcpu.engine, vcpu.host_entries
        self._running, self._allowed, self._cut = vcpu, steps, None
        access: Access | None = None
        try:
            stop = vcpu.advance(steps)
        except Exception as error:
            left, access = self._left(vcpu, None)
            return Ran(max(steps - (engine.left + 1 if left is None else left + 1), 0), error)
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
        else:
            made -= stop.reason is TaskStop.RETURNED
            self._left_cpu()
        if vcpu.host_entries != entries:
            self._python = None
        return Ran(made, access=access)

    def _left(self, vcpu: Vcpu, cut: int | None) -> tuple[int | None, Access | None]:
        """Steps that were left when a run was to end, and which access ended it."""
        access = None
        for where, watched, watch in self._watches:
            if where is vcpu and watch.left is not None:
                if cut is None or watch.left > cut:
                    cut, access = watch.left, watched
                watch.clear()
        return cut, access

    def _go_operation(self, thread: OperationThread, steps: int) -> Ran:
        self._python, self._running, self._cut = None, None, None
        control = thread.control
        if control is None:
            control = thread.control = self.kernel.process.start(thread.do, thread.name)
        made = 0
        while made < steps and not thread.is_done and self._cut is None:
            why = thread.waits_for(self.kernel.rcu.is_pending)
            if why:
                return Ran(made, blocked=why)
            error: Exception | None = None
            self._made = made + 1
            try:
                control.step()
            except KernelError as answer:
                error = answer
            except Exception as broken:
                return Ran(made, broken)
            made += 1
            if control.done:
                thread.finish(control, error)
        return Ran(made)

    def _end_task(self, vcpu: Vcpu) -> None:
        """The outermost function has returned to a stub, which is none of the guest's instructions."""
        vcpu.advance(1)
        self._left_cpu()

    def be_quick(self, thread: Thread) -> None:
        """A thread has made a single step: let ``quick_step`` make the next one, where that can be."""
        vcpu = self.vcpu_of(thread)
        if vcpu is not None and self.position == self.timeline.end and isinstance(thread, TaskThread):
            self._quick = _Quick(thread, vcpu, vcpu.regs.rip, self._due)

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
            return thread.waits_for(self.kernel.rcu.is_pending)
        assert isinstance(thread, TaskThread)
        assert thread.task is not None
        assert thread.cpu is not None
        if thread.task.state is TaskState.SLEEPING:
            return "asleep"
        vcpu = self.kernel.machine.vcpus[thread.cpu]
        if vcpu.task is not thread.task and vcpu.task is not vcpu.idle:
            return f"cpu {thread.cpu} runs {vcpu.task.name}"
        return ""

    def grace_periods(self) -> list[GracePeriod]:
        """The grace periods that can end now, the oldest of each kind. Nothing is noted by looking."""
        return self.kernel.rcu.can_end()

    def end_grace_period(self, flavour: RcuFlavour, number: int) -> EndGracePeriod:
        """Ends the oldest grace period of a kind that can end: a thread runs its callbacks."""
        rcu, chosen = self.kernel.rcu, list[GracePeriod]()

        def choose() -> None:
            chosen[:] = [period for period in rcu.ready() if period.flavour is flavour]

        return EndGracePeriod(
            OperationThread(number, f"callbacks of {flavour}", lambda: rcu.end(chosen[0])), choose
        )

    # Watching data --------------------------------------------------------------------------------------------------

    def watch(self, accesses: Iterable[Access]) -> None:
        """Watch these ranges on every vCPU, and no others."""
        wanted = list(dict.fromkeys(accesses))
        for vcpu, access, watch in list(self._watches):
            if access not in wanted:
                watch.remove()
                self._watches.remove((vcpu, access, watch))
        known = {access for _, access, _ in self._watches}
        for access in wanted:
            if access not in known:
                for vcpu in self.kernel.machine.vcpus:
                    reads, writes = "r" in access.how, "w" in access.how
                    watch = vcpu.engine.watch(access.start, access.size, reads=reads, writes=writes)
                    self._watches.append((vcpu, access, watch))

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

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def _due(self) -> int:
        """Where the next checkpoint is to be."""
        at = bisect_right(self._kept, self.position, key=lambda kept: kept.position) - 1
        return self._kept[at].position + self._spacing

    def _keep(self) -> None:
        """Take a checkpoint, unless an operation is under way."""
        if any(isinstance(thread, OperationThread) and thread.is_under_way for thread in self.threads):
            return
        at = bisect_right(self._kept, self.position, key=lambda kept: kept.position)
        if at and self._kept[at - 1].position == self.position:
            return
        machine = self.kernel.machine
        if self._python is None:
            operations = [thread for thread in self.threads if isinstance(thread, OperationThread)]
            roots = [self.kernel, machine.host_calls, machine.on_int3, machine.on_fault, *self._roots]
            roots += [thing for thread in operations for thing in thread.roots()]
            self._python = Checkpoint(roots, [machine, *machine.vcpus, *machine.tasks, self, *self._own()])
        threads = tuple((thread, thread.capture()) for thread in self.threads)
        self._kept.insert(at, _Kept(self.position, machine.snapshot(), self._python, threads))
        if len(self._kept) > MOST_CHECKPOINTS:
            del self._kept[1::2]
            self._spacing *= 2

    def _own(self) -> list[object]:
        return [self.timeline, self.threads, self.events, self.marks, self._watches, self.stops_at_events]

    def checkpoint_before(self, position: int) -> int:
        """The position of the last checkpoint at or before a position."""
        return self._kept[bisect_right(self._kept, position, key=lambda kept: kept.position) - 1].position

    def goto(self, position: int) -> None:
        """The state at a position of the line."""
        if not 0 <= position <= self.timeline.end:
            raise DebugError(f"no position {position}: there are 0 to {self.timeline.end}")
        if position < self.position or self.checkpoint_before(position) > self.position:
            self._go_back_to(position)
        else:
            self._follow(position)

    def _go_back_to(self, position: int) -> None:
        self._restore(self._kept[bisect_right(self._kept, position, key=lambda kept: kept.position) - 1])
        self._follow(position)

    def _restore(self, kept: _Kept) -> None:
        self._quick = None
        for thread in self.threads:
            if isinstance(thread, OperationThread):
                thread.abandon()
        self.kernel.machine.restore(kept.snapshot)
        kept.python.restore()
        self._python = kept.python
        self.threads[:] = [thread for thread, _ in kept.threads]
        for thread, record in kept.threads:
            thread.restore(record)
        self.position = kept.position

    def _follow(self, position: int) -> None:
        """Make the moves of the line again, up to a position; nothing ends a run early."""
        while self.position < position:
            self.repeat(position)

    def repeat(self, position: int) -> Ran:
        """Make the next moves of the line again: one, or steps of one thread, up to a position."""
        self._quick = None
        move, times = self.timeline.at(self.position)
        if not isinstance(move, Go):
            self._perform(move)
            self.position += 1
            return Ran(1)
        steps = min(times, position - self.position, max(self._due - self.position, 1))
        ran = self._go(move.thread, steps)
        if ran.error is not None or ran.steps == 0:
            raise DebugError(f"position {self.position} can't be reached again: {ran.error or ran.blocked}")
        self.position += ran.steps
        if self.position >= self._due:
            self._keep()
        return ran
