"""Threads: tasks that make calls, and operations of process context, each let go on for some steps at a time."""

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
"""Positions of the registers that a function preserves, and the values that they hold before a marked call."""


class Thread:
    """A task or an operation. ``number`` is counted from 1, ``cpu`` the vCPU on which a task runs, or is to go on.

    Not an ABC: schedules ask of each step whether its actor is a task, and that costs more with an ABC.
    """

    IS_CACHE = True  # a checkpoint of Python's objects leaves it alone: ``capture`` keeps its state
    kind = ""

    def __init__(self, kernel: Kernel, number: int, name: str) -> None:
        self.kernel, self.number, self.name = kernel, number, name
        self.cpu: int | None = None

    @property
    def state(self) -> str:
        """What it is doing, in a word or two."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether it has ended; a task: whether it is in no call."""
        raise NotImplementedError

    def begin(self) -> None:
        """Make it exist, perhaps again: it has made no step."""
        raise NotImplementedError

    def capture(self) -> object:
        """What a checkpoint keeps of it."""
        raise NotImplementedError

    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Thread {self.number} {self.name}: {self.state}>"


@dataclass(slots=True)
class GuestCall:
    """One call of a task, and what it gave. ``begun`` and ``ended``: numbers of steps of a schedule, -1 for neither."""

    function: int
    args: tuple[int, ...]
    name: str = ""
    value: int | None = None
    begun: int = -1
    ended: int = -1


@dataclass(frozen=True, slots=True)
class TaskThreadRecord:
    """What a checkpoint keeps of a task's thread."""

    task: Task | None
    cpu: int
    begun: int


class TaskThread(Thread):
    """A task that makes calls, one after the other.

    ``task``: one that exists, which begins in no call. Without, one is made, which begins in the first call on ``cpu``.
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
        """Calls that have begun."""

    @property
    def vcpu(self) -> Vcpu | None:
        """The vCPU that runs it; None where none does."""
        vcpu = self.kernel.machine.vcpus[self.cpu]
        return vcpu if vcpu.task is self.task else None

    @property
    def state(self) -> str:
        """See Thread."""
        if self.task is None:
            return "gone"
        return str(TaskState.DONE if self.is_done else self.task.state)

    @property
    def is_done(self) -> bool:
        """See Thread."""
        task = self.task
        return task is None or not (task.in_kernel or task.entry is not None)

    @property
    def value(self) -> int | None:
        """What the last call returned; None during one."""
        return self.task.value if self.task is not None and self.is_done else None

    def begin(self) -> None:
        """See Thread."""
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
        """Give a task that can go on its vCPU; it makes no step yet."""
        assert self.task is not None
        self.kernel.machine.vcpus[self.cpu].switch_to(self.task)

    def place(self, cpu: int) -> None:
        """Let a task that no vCPU runs go on on another one."""
        self.cpu = cpu

    def preempt(self) -> None:
        """Take the vCPU from the task."""
        vcpu = self.vcpu
        assert vcpu is not None
        vcpu.yield_task()
        self.kernel.rcu.note_quiescence()

    def wake(self) -> None:
        """Let a sleeping task go on."""
        assert self.task is not None
        self.task.wake()

    def call_returned(self) -> None:
        """Let the task be runnable between two calls: it is done after the last."""
        if self.begun < len(self.calls) and self.task is not None:
            self.task.state = TaskState.RUNNABLE

    def not_preserved(self) -> str:
        """The first marked register that the call which has ended changed, in words; nothing where it changed none."""
        assert self.task is not None
        for position, value in MARKED:
            found = self.task.registers[position]
            if found != value:
                return f"{GENERAL[position]} is {found:#x} after the call, not {value:#x}"
        return ""

    def capture(self) -> TaskThreadRecord:
        """What a checkpoint keeps."""
        return TaskThreadRecord(self.task, self.cpu, self.begun)

    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""
        assert isinstance(record, TaskThreadRecord)
        self.task, self.cpu, self.begun = record.task, record.cpu, record.begun


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """What a checkpoint keeps of an operation, which has not begun or has ended."""

    is_done: bool = False
    result: object = None
    error: KernelError | None = None


class OperationThread(Thread):
    """An operation of process context. ``result`` is what it returned, ``error`` the kernel's answer otherwise."""

    kind = "operation"
    is_done = False

    def __init__(self, kernel: Kernel, number: int, name: str, do: Callable[[], Any]) -> None:
        super().__init__(kernel, number, name)
        self.do = do
        self._control: ControlTask | None = None
        self.point: Point | None = None
        """The point where it stands; None before the first and at its end."""
        self.result: Any = None
        self.error: KernelError | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has made a step."""
        return self._control is not None

    @property
    def is_under_way(self) -> bool:
        """Whether it has made a step and not ended: no checkpoint can hold it."""
        return self._control is not None and not self.is_done

    @property
    def state(self) -> str:
        """See Thread."""
        if self.is_done:
            return "done"
        at = self.point
        return f"at {at.kind}: {at.what}" if at is not None else "begins"

    def roots(self) -> list[object]:
        """Python objects from which what it changes can be reached: what its code names, and what it returned."""
        names = getattr(getattr(self.do, "__code__", None), "co_names", ())
        variables = getattr(self.do, "__globals__", {})
        return [self.do, self.result, *(variables[name] for name in names if name in variables)]

    def begin(self) -> None:
        """See Thread."""
        self.restore(OperationRecord())

    def step(self) -> None:
        """To its next point or its end. A KernelError is its answer; anything else that it raises comes through."""
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
        """Drop it where it stands."""
        if self._control is not None and not self.is_done:
            self._control.abandon()
        self._control = self.point = None

    def capture(self) -> OperationRecord:
        """What a checkpoint keeps."""
        return OperationRecord(self.is_done, self.result, self.error)

    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""
        assert isinstance(record, OperationRecord)
        self._control = self.point = None
        self.is_done, self.result, self.error = record.is_done, record.result, record.error
