"""What can be done to the kernel: every state is what a sequence of these leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emu.debug.threads import OperationThread, TaskThread, Thread


@dataclass(frozen=True, slots=True)
class Move:
    """Root of all moves."""

    @property
    def is_step(self) -> bool:
        """Whether going back one step goes back before it."""
        return False


@dataclass(frozen=True, slots=True)
class Go(Move):
    """A thread makes one step: an instruction of a task, the way to an operation's next point."""

    thread: "Thread"

    @property
    def is_step(self) -> bool:
        """See Move."""
        return True


@dataclass(frozen=True, slots=True)
class Begin(Move):
    """A thread comes to be."""

    thread: "Thread"


@dataclass(frozen=True, slots=True)
class SetRegister(Move):
    """A register of a task is changed."""

    thread: "TaskThread"
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class WriteMemory(Move):
    """Guest memory is changed."""

    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Adopt(Move):
    """A vCPU sees what was written to text: the pending writes over an address, or all, as if it had serialised."""

    cpu: int
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Preempt(Move):
    """A task loses its vCPU."""

    thread: "TaskThread"


@dataclass(frozen=True, slots=True)
class Wake(Move):
    """A sleeping task can go on."""

    thread: "TaskThread"


@dataclass(frozen=True, slots=True)
class PlaceTask(Move):
    """A task that no vCPU runs is to go on on another one."""

    thread: "TaskThread"
    cpu: int


@dataclass(frozen=True, slots=True)
class Resume(Move):
    """A task that can go on gets its vCPU, and makes no step yet."""

    thread: "TaskThread"


@dataclass(frozen=True, slots=True)
class CallAgain(Move):
    """A task that is in no function calls one, on an idle vCPU. ``registers``: by position in ``registers.SAVED``."""

    thread: "TaskThread"
    cpu: int
    function: int
    args: tuple[int, ...]
    registers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class EndGracePeriod(Move):
    """A grace period ends, and a thread that is to run its callbacks comes to be."""

    thread: "OperationThread"
    choose: Callable[[], None]
    """Finds the grace period."""
