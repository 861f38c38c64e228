"""A kernel under a debugger: forwards and backwards, thread by thread, with views of its state at each position."""

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
"""Kernels that a debugger is open on."""


class Debugger(Sight):
    """Threads of one kernel, moved one at a time. Until ``close`` only the debugger may change the kernel.

    ``roots``: Python objects besides the kernel that operations change. Counters are removed from the vCPUs meanwhile,
    and grace periods end only by the user or by ``run``. DebugError for requests that the current position rules out.
    """

    IS_CACHE = True  # not part of a checkpoint of Python objects
    phases: tuple[str, ...] = ()
    """The phases that a breakpoint may name; empty: any word, as phases have no meaning in this package."""

    def __init__(
        self, kernel: Kernel, roots: Iterable[object] = (), *, restored: Callable[[], None] | None = None
    ) -> None:
        """``restored``: called after a return to the first checkpoint, which is then the only one."""
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
        """State of breakpoints during a run."""

    # Threads --------------------------------------------------------------------------------------------------------

    def select(self, thread: Thread) -> None:
        """Make a thread the current one. DebugError if it does not exist at this position."""
        if thread not in self._record.threads:
            raise DebugError(f"{thread.name} does not exist here")
        self._current = thread

    def call(
        self, function: str | int, *args: int, stack_args: Sequence[int] = (), cpu: int = 0, name: str = ""
    ) -> Thread:
        """Start a task that will call a function on a vCPU; rip is at the function's first instruction.

        It becomes the current thread. KernelError (-ENOENT) for an unknown function, DebugError for an unknown vCPU.
        """
        self._check_cpu(cpu)
        address = self.address_of(function)
        name = name or (function if isinstance(function, str) else self.symbol(address))
        masked = tuple(arg & ADDRESS_MASK for arg in args)
        if stack_args:
            masked += (*[0] * (len(ARGUMENTS) - len(args)), *stack_args)
        return self._begin(TaskThread(self.kernel, self._next_number(), name, [GuestCall(address, masked)], cpu))

    def operation(self, name: str, do: Callable[[], object]) -> Thread:
        """Create an operation of process context (attach, detach), not yet started. It becomes the current thread.

        It may run several times: all it changes besides the kernel must be reachable from it or from ``roots``.
        """
        return self._begin(OperationThread(self.kernel, self._next_number(), name, do))

    def end_grace_period(self, flavour: str) -> Thread:
        """End the oldest grace period of a flavour (one of ``grace_periods``): a thread that runs its callbacks.

        DebugError if it can't end.
        """
        kinds = [period.flavour for period in self._record.grace_periods()]
        if flavour not in kinds:
            raise DebugError(f"no grace period of {flavour} can end; {', '.join(kinds) or 'none'} can")
        end = partial(self.kernel.rcu.end_oldest, RcuFlavour(flavour))
        return self._begin(OperationThread(self.kernel, self._next_number(), f"callbacks of {flavour}", end))

    @property
    def grace_periods(self) -> tuple[str, ...]:
        """The flavours of which a grace period can end now."""
        return tuple(str(period.flavour) for period in self._record.grace_periods())

    def wake(self, thread: Thread) -> None:
        """Wake a sleeping task. DebugError if it is not asleep."""
        task = self._task_thread(thread)
        if task.task is None or task.task.state is not TaskState.SLEEPING:
            raise DebugError(f"{thread.name} is not asleep")
        self._record.make(Do(task.wake))

    def preempt(self, thread: Thread) -> None:
        """Take the vCPU from a task. DebugError if it has none, or between an int3 and its entry."""
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is None:
            raise DebugError(f"{thread.name} is on no cpu")
        if self.is_trapped(task):
            raise DebugError(f"{thread.name} is on the way from an int3 to its entry: interrupts are off")
        self._record.make(Do(task.preempt))

    def place(self, thread: Thread, cpu: int) -> None:
        """Move a task that no vCPU runs to another vCPU. DebugError."""
        self._check_cpu(cpu)
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is not None:
            raise DebugError(f"{thread.name} is on cpu {task.cpu}: preempt it first")
        self._record.make(Do(task.place, (cpu,)))

    def adopt(self, cpu: int, address: int | None = None) -> None:
        """Let a vCPU see pending text writes: at an address, or all, as a serialising instruction does. DebugError."""
        self._check_cpu(cpu)
        vcpu = self.kernel.machine.vcpus[cpu]
        writes = [write for write in vcpu.pending() if address is None or write.address <= address < write.end]
        if not writes:
            raise DebugError(f"cpu {cpu} has nothing to adopt" + (f" at {address:#x}" if address is not None else ""))
        self._record.make(Do(self._record.adopt, (cpu, address)))

    def is_trapped(self, thread: Thread) -> bool:
        """True if a task has executed an int3 whose entry, a step of its own, has not run yet."""
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
        """The last position of the timeline; after the current one if the debugger went back."""
        return self._record.timeline.end

    def step(self, n: int = 1) -> DebugStop:
        """Execute ``n`` instructions of the current thread, or pass points of an operation. DebugError.

        A breakpoint may stop it earlier.
        """
        thread = self.thread
        if n == 1:
            return self._search.one(thread)
        if n < 1:
            raise DebugError(f"{n} steps: at least 1")
        return self._search.forward(thread, self._breakpoints, limit=n, reason=DebugStopReason.STEP)

    def step_over(self) -> DebugStop:
        """As ``step``, but a call, or a repeated instruction, is one step."""
        return self._search.over(self.thread, self._breakpoints)

    def step_out(self) -> DebugStop:
        """Run until the current function returns; an operation: to its end."""
        return self._search.out(self.thread, self._breakpoints)

    def run(self, limit: int | None = None) -> DebugStop:
        """Run until a breakpoint, the end of the current thread (if it has ended: of the next one), or a fault.

        While the thread waits, others run; grace periods end and sleepers wake if nothing else can run.
        """
        return self._search.run(self._breakpoints, limit)

    def run_to(self, what: str) -> DebugStop:
        """As ``run``, to the next "phase", "program", "call", "patch" or "event"."""
        return self._search.run([*self._breakpoints, self.goal(what)], None, reason=DebugStopReason.STEP)

    def goal(self, what: str) -> Breakpoint:
        """Breakpoint for a goal of ``run_to``. DebugError for an unknown goal."""
        if what == "event":
            return AtEvent()
        if what == "patch":
            return AtEvent("TextPatched")
        if what not in GOALS:
            raise DebugError(f"no goal {what!r}; there are phase, program, call, patch, event")
        return GOALS[what]()

    def back(self, n: int = 1) -> DebugStop:
        """Go back before the last ``n`` steps of any threads; changes made after them are undone as well.

        Stops at the first step: only ``goto`` goes further back.
        """
        return self._search.back(n)

    def last_step(self, thread: Thread) -> int | None:
        """The position before the last step of a thread; None if it has made none."""
        return self._search.last_step_of(thread)

    def back_over(self) -> DebugStop:
        """As ``back``, but a call that has returned is one step."""
        return self._search.back_over(self.thread)

    def back_out(self) -> DebugStop:
        """Go back to before the call of the current function; an operation: to its start."""
        return self._search.back_out(self.thread)

    def run_back(self) -> DebugStop:
        """Go back to the last position where a breakpoint fires, or to the start."""
        return self._search.run_back(self._breakpoints)

    def goto(self, position: int) -> DebugStop:
        """Go to a position from 0 to ``end``. DebugError for any other."""
        self._record.goto(position)
        self._follow_current()
        return self.stopped(DebugStopReason.STEP if position else DebugStopReason.START)

    def interrupt(self) -> None:
        """Stop the run under way soon. May be called from another host thread or a signal handler."""
        self._search.interrupted = True

    def stopped(self, reason: DebugStopReason, message: str = "", breakpoint: Breakpoint | None = None) -> DebugStop:
        """A DebugStop at the current position."""
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

    # Breakpoints ----------------------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """All breakpoints, in the order in which they were added."""
        return tuple(self._breakpoints)

    def add(self, breakpoint: Breakpoint) -> Breakpoint:
        """Add a breakpoint. Equal breakpoints are one. DebugError, KernelError for one that is not valid."""
        breakpoint.check(self)
        if breakpoint not in self._breakpoints:
            self._breakpoints.append(breakpoint)
        return breakpoint

    def remove(self, breakpoint: Breakpoint) -> None:
        """Remove a breakpoint. DebugError if it does not exist."""
        if breakpoint not in self._breakpoints:
            raise DebugError("no such breakpoint")
        self._breakpoints.remove(breakpoint)

    # Changes --------------------------------------------------------------------------------------------------------

    def set_register(self, name: str, value: int, thread: Thread | None = None) -> None:
        """Change a register, as a move. DebugError."""
        if name not in REGISTERS:
            raise DebugError(f"no register {name!r}; there are {', '.join(REGISTERS)}")
        if not 0 <= value <= ADDRESS_MASK:
            raise DebugError(f"{value:#x} is not an unsigned 64-bit number")
        task = self._task_thread(thread)
        if name == "gs_base" and self._record.vcpu_of(task) is None:
            raise DebugError(f"{task.name} is on no cpu: gs_base belongs to a cpu")
        self._record.make(Do(self._record.set_register, (task, "rflags" if name == "eflags" else name, value)))

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory, as a move; text as well, visible to every vCPU at once. NotMapped."""
        self.kernel.machine.read(address, len(data))
        self._record.make(Do(self._record.write_memory, (address, bytes(data))))

    def close(self) -> None:
        """Release the kernel in its current state: tasks under way stay where they are."""
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
