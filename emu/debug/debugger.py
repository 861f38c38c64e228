"""A kernel under a debugger: forwards and backwards, thread by thread, with what is to be seen at each position."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, cast
from weakref import WeakSet

from emu.counting import Method, counter_for
from emu.debug.breakpoints import AtEvent, Breakpoint
from emu.debug.errors import DebugError
from emu.debug.history import ActionHistory
from emu.debug.inspection import REGISTERS, Sight
from emu.debug.run_to import GOALS
from emu.debug.search import Search
from emu.debug.stop import DebugStop, DebugStopReason
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.machine.address_map import ADDRESS_MASK
from emu.machine.registers import ARGUMENTS
from emu.machine.task import TaskState
from emu.threads.moves import Begin, Do, Go
from emu.threads.thread import GuestCall, OperationThread, TaskThread, Thread

_DEBUGGED: WeakSet[Kernel] = WeakSet()
"""Kernels that have a debugger now."""


class Debugger(Sight):
    """Threads of one kernel, moved one at a time. Until ``close`` nobody else may change the kernel.

    ``roots``: Python objects beside the kernel that operations change. Counters are taken out of the vCPUs meanwhile,
    and grace periods end when the user, or ``run``, lets them. DebugError for what makes no sense where things stand.
    """

    IS_CACHE = True  # a checkpoint of Python's objects leaves it alone
    phases: tuple[str, ...] = ()
    """The phases that a breakpoint may name; empty: any word, since what they mean is unknown here."""

    def __init__(
        self, kernel: Kernel, roots: Iterable[object] = (), *, restored: Callable[[], None] | None = None
    ) -> None:
        """``restored``: called when the first checkpoint, which is the only one then, was gone back to."""
        if kernel in _DEBUGGED:
            raise DebugError("another debugger is open on this kernel")
        _DEBUGGED.add(kernel)
        kernel.rcu.settle()
        self._was_automatic, kernel.rcu.automatic = kernel.rcu.automatic, False
        self._methods: list[Method | None] = []
        for vcpu in kernel.machine.vcpus:
            counter = vcpu.counter
            self._methods.append(cast(Method, counter.method) if counter is not None else None)
            if counter is not None:
                vcpu.settle_counter()
                vcpu.collect_counts()
                vcpu.counter = None
                counter.remove()
        super().__init__(kernel, ActionHistory(kernel, roots, restored))
        self._search = Search(self, self._record)
        self._breakpoints: list[Breakpoint] = []
        self._is_closed = False
        self.notes: dict[Breakpoint, object] = {}
        """What breakpoints remember during a run."""

    # Who ------------------------------------------------------------------------------------------------------------

    def select(self, thread: Thread) -> None:
        """Make a thread the current one."""
        if thread not in self._record.threads:
            raise DebugError(f"{thread.name} does not exist here")
        self._current = thread

    def call(
        self, function: str | int, *args: int, stack_args: Sequence[int] = (), cpu: int = 0, name: str = ""
    ) -> Thread:
        """A task that is to call a function on a vCPU, as its callers would; it stands before the first instruction.

        It is the current thread. KernelError (-ENOENT) for an unknown function, DebugError for an unknown vCPU.
        """
        self._check_cpu(cpu)
        address = self.address_of(function)
        name = name or (function if isinstance(function, str) else self.symbol(address))
        masked = tuple(arg & ADDRESS_MASK for arg in args)
        if stack_args:
            masked += (*[0] * (len(ARGUMENTS) - len(args)), *stack_args)
        return self._begin(TaskThread(self.kernel, self._next_number(), name, [GuestCall(address, masked)], cpu))

    def operation(self, name: str, do: Callable[[], object]) -> Thread:
        """An operation of process context (attach, detach), which has not begun. It is the current thread.

        It may be run several times: what it changes beside the kernel must be reachable from it or from ``roots``.
        """
        return self._begin(OperationThread(self.kernel, self._next_number(), name, do))

    def end_grace_period(self, flavour: str) -> Thread:
        """End the oldest grace period of a kind (of ``grace_periods``): a thread that runs its callbacks.

        DebugError where none can end.
        """
        kinds = [period.flavour for period in self._record.grace_periods()]
        if flavour not in kinds:
            raise DebugError(f"no grace period of {flavour} can end; {', '.join(kinds) or 'none'} can")
        end = partial(self.kernel.rcu.end_oldest, RcuFlavour(flavour))
        return self._begin(OperationThread(self.kernel, self._next_number(), f"callbacks of {flavour}", end))

    @property
    def grace_periods(self) -> tuple[str, ...]:
        """The kinds of which a grace period can end now."""
        return tuple(str(period.flavour) for period in self._record.grace_periods())

    def wake(self, thread: Thread) -> None:
        """Let a sleeping task go on."""
        task = self._task_thread(thread)
        if task.task is None or task.task.state is not TaskState.SLEEPING:
            raise DebugError(f"{thread.name} is not asleep")
        self._record.make(Do(task.wake))

    def preempt(self, thread: Thread) -> None:
        """Take the vCPU from a task."""
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is None:
            raise DebugError(f"{thread.name} is on no cpu")
        if self.is_trapped(task):
            raise DebugError(f"{thread.name} is on the way from an int3 to its entry: interrupts are off")
        self._record.make(Do(task.preempt))

    def place(self, thread: Thread, cpu: int) -> None:
        """Let a task that no vCPU runs go on on another one."""
        self._check_cpu(cpu)
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is not None:
            raise DebugError(f"{thread.name} is on cpu {task.cpu}: preempt it first")
        self._record.make(Do(task.place, (cpu,)))

    def adopt(self, cpu: int, address: int | None = None) -> None:
        """Let a vCPU see what was written to text: at an address, or all of it, as a serialising instruction does."""
        self._check_cpu(cpu)
        vcpu = self.kernel.machine.vcpus[cpu]
        writes = [write for write in vcpu.pending() if address is None or write.address <= address < write.end]
        if not writes:
            raise DebugError(f"cpu {cpu} has nothing to adopt" + (f" at {address:#x}" if address is not None else ""))
        self._record.make(Do(self._record.adopt, (cpu, address)))

    def is_trapped(self, thread: Thread) -> bool:
        """Whether a task has executed an int3 whose entry, which is a step of its own, has not run yet."""
        return self._record.is_trapped(thread)

    def _begin(self, thread: Thread) -> Thread:
        self._record.make(Begin(thread))
        self._current = thread
        return thread

    def _next_number(self) -> int:
        return max((thread.number for thread in self._record.threads), default=0) + 1

    def _check_cpu(self, cpu: int) -> None:
        count = len(self.kernel.machine.vcpus)
        if not 0 <= cpu < count:
            raise DebugError(f"no cpu {cpu}: there are {count}")

    @property
    def end(self) -> int:
        """The last position of the line; behind the present one where we went back."""
        return self._record.timeline.end

    def step(self, n: int = 1) -> DebugStop:
        """So many instructions of the current thread, or points of an operation; fewer where a breakpoint stops it."""
        thread = self.thread
        if n == 1:
            return self._search.one(thread)
        if n < 1:
            raise DebugError(f"{n} steps")
        return self._search.forward(thread, self._breakpoints, limit=n, reason=DebugStopReason.STEP)

    def step_over(self) -> DebugStop:
        """As ``step``, but a call is one step, and so is a repeated instruction."""
        return self._search.over(self.thread, self._breakpoints)

    def step_out(self) -> DebugStop:
        """To where the present function returns to; an operation: to its end."""
        return self._search.out(self.thread, self._breakpoints)

    def run(self, limit: int | None = None) -> DebugStop:
        """Until a breakpoint stops it, the current thread ends (where it has: the next one), or it faults.

        While the thread waits for something, others go on; grace periods end and sleepers wake where nobody else can.
        """
        return self._search.run(self._breakpoints, limit)

    def run_to(self, what: str) -> DebugStop:
        """As ``run``, to the next "phase", "program", "call", "patch" or "event"."""
        return self._search.run([*self._breakpoints, self.goal(what)], None, reason=DebugStopReason.STEP)

    def goal(self, what: str) -> Breakpoint:
        """What ``run_to`` looks for. DebugError for an unknown goal."""
        if what == "event":
            return AtEvent()
        if what == "patch":
            return AtEvent("TextPatched")
        if what not in GOALS:
            raise DebugError(f"no goal {what!r}; there are phase, program, call, patch, event")
        return GOALS[what]()

    def back(self, n: int = 1) -> DebugStop:
        """Back before the last ``n`` steps of whichever threads; what was changed behind them is undone as well.

        Before the first step there is nothing: only ``goto`` goes further back.
        """
        return self._search.back(n)

    def last_step(self, thread: Thread) -> int | None:
        """The position before the last step of a thread; None where it has made none."""
        return self._search.last_step_of(thread)

    def back_over(self) -> DebugStop:
        """As ``back``, but a call that has returned is one step."""
        return self._search.back_over(self.thread)

    def back_out(self) -> DebugStop:
        """Back to before the call of the present function; an operation: to its begin."""
        return self._search.back_out(self.thread)

    def run_back(self) -> DebugStop:
        """Back to the last position where a breakpoint was met, or to the start."""
        return self._search.run_back(self._breakpoints)

    def goto(self, position: int) -> DebugStop:
        """The state at a position from 0 to ``end``. DebugError for any other."""
        self._record.goto(position)
        self._follow_current()
        return self.stopped(DebugStopReason.STEP if position else DebugStopReason.START)

    def interrupt(self) -> None:
        """From another thread of the host, or a signal: the run under way stops soon."""
        self._search.interrupted = True

    def stopped(self, reason: DebugStopReason, message: str = "", breakpoint: Breakpoint | None = None) -> DebugStop:
        """A Stop here."""
        events = self._record.events
        event = None
        if events:
            last = bisect_right(events, self.position, key=lambda found: found[0]) - 1
            event = events[last][1] if last >= 0 and events[last][0] == self.position else None
        threads = self._record.threads
        return DebugStop(reason, self.thread if threads else None, self.position, breakpoint, event, message)

    def _follow_current(self) -> None:
        """Make the thread that made the last step the current one."""
        if self.position:
            move, _ = self._record.timeline.before(self.position)
            if isinstance(move, Go):
                self._current = move.thread

    # Where to stop --------------------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """All of them, in the order in which they were added."""
        return tuple(self._breakpoints)

    def add(self, breakpoint: Breakpoint) -> Breakpoint:
        """Stop runs there. Equal breakpoints are one. DebugError, KernelError where it can't be."""
        breakpoint.check(self)
        if breakpoint not in self._breakpoints:
            self._breakpoints.append(breakpoint)
        return breakpoint

    def remove(self, breakpoint: Breakpoint) -> None:
        """Stop there no more."""
        if breakpoint not in self._breakpoints:
            raise DebugError("there is no such breakpoint")
        self._breakpoints.remove(breakpoint)

    # What is changed ------------------------------------------------------------------------------------------------

    def set_register(self, name: str, value: int, thread: Thread | None = None) -> None:
        """Change a register, as a move."""
        if name not in REGISTERS:
            raise DebugError(f"no register {name!r}; there are {', '.join(REGISTERS)}")
        if not 0 <= value <= ADDRESS_MASK:
            raise DebugError(f"{value:#x} is no unsigned 64-bit number")
        task = self._task_thread(thread)
        if name == "gs_base" and self._record.vcpu_of(task) is None:
            raise DebugError(f"{task.name} is on no cpu: gs_base is a cpu's")
        self._record.make(Do(self._record.set_register, (task, "rflags" if name == "eflags" else name, value)))

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory, as a move; text too, which every vCPU sees at once. NotMapped."""
        self.kernel.machine.read(address, len(data))
        self._record.make(Do(self._record.write_memory, (address, bytes(data))))

    def close(self) -> None:
        """Let go of the kernel as it stands: tasks that are under way stay where they are."""
        if self._is_closed:
            return
        self._is_closed = True
        _DEBUGGED.discard(self.kernel)
        self._record.close()
        for vcpu, method in zip(self.kernel.machine.vcpus, self._methods, strict=True):
            if vcpu.task is not vcpu.idle:
                vcpu.yield_task()
            if method is not None:
                vcpu.counter = counter_for(vcpu.uc, vcpu.read_code, method)
        self.kernel.rcu.automatic = self._was_automatic
        self.kernel.rcu.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
