"""Threads: tasks that make calls, and operations of process context, each advanced step by step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import ControlTask, Point
from emu.machine.registers import GENERAL
from emu.machine.task import Task, TaskState
from emu.machine.vcpu import Vcpu

_SAVED_BY_CALLEES = ("rbx", "rbp", "r12", "r13", "r14", "r15")
MARKED = tuple((GENERAL.index(name), 0x5EED_0000 + number) for number, name in enumerate(_SAVED_BY_CALLEES))
"""Positions of callee-saved registers, and their values before a marked call."""


class Thread:
    """A task or an operation. ``number`` counts from 1, ``cpu`` is a task's current or next vCPU.

    Not an ABC: schedules test for each step whether its actor is a task, and that costs more with an ABC.
    """

    IS_CACHE = True  # not part of a checkpoint of Python objects: ``capture`` keeps its state
    kind = ""

    def __init__(self, kernel: Kernel, number: int, name: str) -> None:
        self.kernel, self.number, self.name = kernel, number, name
        self.cpu: int | None = None

    @property
    def state(self) -> str:
        """State in a word or two."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """True if it has ended; for a task: if it is in no call."""
        raise NotImplementedError

    def begin(self) -> None:
        """Create it, perhaps again, without any step made."""
        raise NotImplementedError

    def capture(self) -> object:
        """State for a checkpoint."""
        raise NotImplementedError

    def restore(self, record: object) -> None:
        """Return to a state from ``capture``."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Thread {self.number} {self.name}: {self.state}>"


@dataclass(slots=True)
class GuestCall:
    """One call of a task, and its result. ``begun`` and ``ended``: numbers of steps of a schedule, -1 for neither."""

    function: int
    args: tuple[int, ...]
    name: str = ""
    value: int | None = None
    begun: int = -1
    ended: int = -1


@dataclass(frozen=True, slots=True)
class TaskThreadRecord:
    """State of a task's thread in a checkpoint."""

    task: Task | None
    cpu: int
    begun: int


class TaskThread(Thread):
    """A task that makes calls, one after the other.

    ``task``: an existing one, which is in no call at first. Without it, a new one begins in the first call on ``cpu``.
    """

    kind = "task"
    cpu: int

    def __init__(
        self, kernel: Kernel, number: int, name: str, calls: Sequence[GuestCall], cpu: int, task: Task | None = None
    ) -> None:
        super().__init__(kernel, number, name)
        self.calls, self.first_cpu, self._given = list(calls), cpu, task
        self.cpu, self.task = cpu, task
        self.begun = 0
        """Number of calls that have begun."""

    @property
    def vcpu(self) -> Vcpu | None:
        """The vCPU that runs it; None if there is none."""
        vcpu = self.kernel.machine.vcpus[self.cpu]
        return vcpu if vcpu.task is self.task else None

    @property
    def state(self) -> str:
        if self.task is None:
            return "gone"
        return str(TaskState.DONE if self.is_done else self.task.state)

    @property
    def is_done(self) -> bool:
        task = self.task
        return task is None or not (task.in_kernel or task.entry is not None)

    @property
    def value(self) -> int | None:
        """Return value of the last call; None during a call."""
        return self.task.value if self.task is not None and self.is_done else None

    def begin(self) -> None:
        self.cpu, self.begun = self.first_cpu, 0
        if self._given is not None:
            self.task = self._given
            self.task.entry, self.task.state = None, TaskState.RUNNABLE
            return
        call = self.calls[0]
        self.task, self.begun = self.kernel.task(self.name, call.function, *call.args), 1
        vcpu = self.kernel.machine.vcpus[self.cpu]
        if vcpu.task is vcpu.idle:
            vcpu.switch_to(self.task)

    def start_call(self, cpu: int) -> None:
        """Begin the next call, on an idle vCPU, with marked registers."""
        task, call = self.task, self.calls[self.begun]
        assert task is not None
        self.begun += 1
        task.state, task.entry, task.in_kernel = TaskState.RUNNABLE, (call.function, call.args), False
        for position, value in MARKED:
            task.registers[position] = value
        self.cpu = cpu
        self.kernel.machine.vcpus[cpu].switch_to(task)

    def resume(self) -> None:
        """Give a task that can continue its vCPU; it makes no step yet."""
        assert self.task is not None
        self.kernel.machine.vcpus[self.cpu].switch_to(self.task)

    def place(self, cpu: int) -> None:
        """Move a task that no vCPU runs to another vCPU."""
        self.cpu = cpu

    def preempt(self) -> None:
        """Take the vCPU from the task."""
        vcpu = self.vcpu
        assert vcpu is not None
        vcpu.yield_task()
        self.kernel.rcu.note_quiescence()

    def wake(self) -> None:
        """Make a sleeping task runnable."""
        assert self.task is not None
        self.task.wake()

    def call_returned(self) -> None:
        """Make the task runnable between two calls; it is done after the last."""
        if self.begun < len(self.calls) and self.task is not None:
            self.task.state = TaskState.RUNNABLE

    def not_preserved(self) -> str:
        """The first marked register that the finished call changed, in words; empty if there is none."""
        assert self.task is not None
        for position, value in MARKED:
            found = self.task.registers[position]
            if found != value:
                return f"{GENERAL[position]} is {found:#x} after the call, not {value:#x}"
        return ""

    def capture(self) -> TaskThreadRecord:
        """State for a checkpoint."""
        return TaskThreadRecord(self.task, self.cpu, self.begun)

    def restore(self, record: object) -> None:
        """Return to a state from ``capture``."""
        assert isinstance(record, TaskThreadRecord)
        self.task, self.cpu, self.begun = record.task, record.cpu, record.begun


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """State of an operation in a checkpoint: not begun, or ended."""

    is_done: bool = False
    result: object = None
    error: KernelError | None = None


class OperationThread(Thread):
    """An operation of process context. ``result`` is its return value, ``error`` its KernelError."""

    kind = "operation"
    is_done = False

    def __init__(self, kernel: Kernel, number: int, name: str, do: Callable[[], Any]) -> None:
        super().__init__(kernel, number, name)
        self.do = do
        self._control: ControlTask | None = None
        self.point: Point | None = None
        """The point where it waits; None before the first and at its end."""
        self.result: Any = None
        self.error: KernelError | None = None

    @property
    def has_begun(self) -> bool:
        """True if it has made a step."""
        return self._control is not None

    @property
    def is_under_way(self) -> bool:
        """True if it has made a step and not ended: no checkpoint can contain it."""
        return self._control is not None and not self.is_done

    @property
    def state(self) -> str:
        if self.is_done:
            return "done"
        at = self.point
        return f"at {at.kind}: {at.what}" if at is not None else "begins"

    def roots(self) -> list[object]:
        """Python objects from which its changes can be reached: those that its code names, and its result."""
        names = getattr(getattr(self.do, "__code__", None), "co_names", ())
        variables = getattr(self.do, "__globals__", {})
        return [self.do, self.result, *(variables[name] for name in names if name in variables)]

    def begin(self) -> None:
        self.restore(OperationRecord())

    def step(self) -> None:
        """Run to its next point or its end. A KernelError becomes its ``error``; other exceptions propagate."""
        control = self._control
        if control is None:
            control = self._control = self.kernel.process.start(self.do, self.name)
        try:
            control.step()
        except KernelError as answer:
            self.error = answer
        self.point = control.at
        if control.done:
            self.is_done, self.result = True, control.result

    def abandon(self) -> None:
        """End it at its current point."""
        if self._control is not None and not self.is_done:
            self._control.abandon()
        self._control = self.point = None

    def capture(self) -> OperationRecord:
        """State for a checkpoint."""
        return OperationRecord(self.is_done, self.result, self.error)

    def restore(self, record: object) -> None:
        """Return to a state from ``capture``."""
        assert isinstance(record, OperationRecord)
        self._control = self.point = None
        self.is_done, self.result, self.error = record.is_done, record.result, record.error
