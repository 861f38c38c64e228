"""Whom the user moves: tasks that call a function, and operations of process context."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emu.kernel.kernel import Kernel
from emu.kernel.process_context import ControlTask, Lock, PointKind
from emu.machine.registers import ARGUMENTS
from emu.machine.task import Task, TaskState


class Thread(ABC):
    """One of them. ``number`` is counted from 1, ``cpu`` the vCPU on which a task runs, or is to go on."""

    IS_CACHE = True  # a checkpoint of Python's objects leaves it alone: the debugger keeps what it was
    kind = ""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.cpu: int | None = None

    @property
    @abstractmethod
    def state(self) -> str:
        """What it is doing, in a word or two."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def capture(self) -> object:
        """What a checkpoint keeps of it."""

    @abstractmethod
    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""

    def __repr__(self) -> str:
        return f"<Thread {self.number} {self.name}: {self.state}>"


@dataclass(frozen=True, slots=True)
class TaskThreadRecord:
    """What a checkpoint keeps of a task's thread."""

    task: Task | None
    cpu: int | None


class TaskThread(Thread):
    """A task that calls a function."""

    kind = "task"

    def __init__(
        self, number: int, name: str, function: int, args: Sequence[int], stack_args: Sequence[int], cpu: int
    ) -> None:
        super().__init__(number, name)
        if stack_args:
            args = (*args, *[0] * (len(ARGUMENTS) - len(args)), *stack_args)
        self.function, self.args = function, tuple(args)
        self.cpu: int | None = cpu
        self.first_cpu = cpu
        self.task: Task | None = None

    @property
    def state(self) -> str:
        """See Thread."""
        return str(self.task.state) if self.task is not None else "gone"

    @property
    def is_done(self) -> bool:
        """See Thread."""
        return self.task is None or self.task.state is TaskState.DONE

    @property
    def value(self) -> int | None:
        """What the function returned, once it has."""
        return self.task.value if self.task is not None and self.task.state is TaskState.DONE else None

    def make_task(self, kernel: Kernel) -> Task:
        """The task, which is to call the function."""
        return kernel.task(self.name, self.function, *self.args)

    def capture(self) -> TaskThreadRecord:
        """What a checkpoint keeps."""
        return TaskThreadRecord(self.task, self.cpu)

    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""
        assert isinstance(record, TaskThreadRecord)
        self.task, self.cpu = record.task, record.cpu


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """What a checkpoint keeps of an operation, which has not begun or has ended."""

    is_done: bool
    result: object
    error: Exception | None


class OperationThread(Thread):
    """An operation of process context. ``result`` is what it returned, ``error`` the kernel's answer otherwise."""

    kind = "operation"

    def __init__(self, number: int, name: str, do: Callable[[], Any]) -> None:
        super().__init__(number, name)
        self.do = do
        self.control: ControlTask | None = None
        self.result: Any = None
        self.error: Exception | None = None
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """See Thread."""
        return self._is_done

    def roots(self) -> list[object]:
        """Python objects from which what it changes can be reached: what its code names, and what it returned."""
        names = getattr(getattr(self.do, "__code__", None), "co_names", ())
        variables = getattr(self.do, "__globals__", {})
        return [self.do, self.result, *(variables[name] for name in names if name in variables)]

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and not ended: no checkpoint can hold it."""
        return self.control is not None and not self._is_done

    @property
    def state(self) -> str:
        """See Thread."""
        if self._is_done:
            return "done"
        at = self.control.at if self.control is not None else None
        return f"at {at.kind}: {at.what}" if at is not None else "begins"

    def begin(self) -> None:
        """It comes to be, perhaps again: it has not begun to run."""
        self.restore(OperationRecord(is_done=False, result=None, error=None))

    def step(self, control: ControlTask) -> None:
        """To its next point."""
        control.step()

    def finish(self, control: ControlTask, error: Exception | None) -> None:
        """It has ended."""
        self._is_done, self.result, self.error = True, control.result, error

    def abandon(self) -> None:
        """Drop it where it stands."""
        if self.control is not None and not self._is_done:
            self.control.abandon()
        self.control = None

    def waits_for(self, is_pending: Callable[[object], bool], is_trapped: Callable[[int], bool]) -> str:
        """What it can't go on without, in words; nothing where it can. ``is_pending``: of a grace period,
        ``is_trapped``: of a vCPU, which takes no interrupt then.
        """
        at = self.control.at if self.control is not None else None
        if at is None:
            return ""
        if at.kind is PointKind.LOCK and isinstance(at.on, Lock) and at.on.held:
            return f"{at.on.name} is held"
        if at.kind is PointKind.IPI and isinstance(at.on, int) and is_trapped(at.on):
            return f"cpu {at.on} is on the way from an int3 to its entry: interrupts are off"
        if at.kind is PointKind.GRACE_PERIOD and is_pending(at.on):
            return f"{at.what}: the grace period is not over"
        return ""

    def capture(self) -> OperationRecord:
        """What a checkpoint keeps."""
        return OperationRecord(self._is_done, self.result, self.error)

    def restore(self, record: object) -> None:
        """Back to what ``capture`` gave."""
        assert isinstance(record, OperationRecord)
        self.control = None
        self._is_done, self.result, self.error = record.is_done, record.result, record.error
