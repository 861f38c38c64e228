"""Tasks: kernel threads that any vCPU can run, one at a time."""

import enum
from dataclasses import dataclass

from emu.machine.registers import GENERAL, RSP, SAVED

INITIAL_RFLAGS = 0x202
"""Interrupts enabled, and the bit that is always set."""
PT_REGS_ROOM = 0xB0
"""Bytes at the top of a kernel stack for user space's registers (``task_pt_regs``): the first call begins below,
so that code that reads beyond its arguments finds mapped memory.
"""


class TaskState(enum.StrEnum):
    """State of a task."""

    RUNNABLE = "runnable"
    """Waiting for a CPU: new, woken up, or preempted."""
    RUNNING = "running"
    SLEEPING = "sleeping"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """State of a task in a snapshot."""

    address: int
    state: TaskState
    registers: tuple[int, ...]
    in_kernel: bool
    voluntary_switches: int
    value: int
    entry: tuple[int, tuple[int, ...]] | None
    return_rsp: int


class Task:
    """One kernel thread: its task_struct, its stack, and its registers while no CPU runs it.

    ``address`` is its task_struct in guest memory, the value of ``current`` while it runs. GS base and CR3 are not
    among the registers, so that it may continue on another vCPU.
    """

    def __init__(self, name: str, stack_top: int, *, address: int = 0) -> None:
        self.name, self.address, self.stack_top = name, address, stack_top
        self.state = TaskState.RUNNABLE
        self.registers = [0] * len(GENERAL) + [0, INITIAL_RFLAGS]
        self.registers[RSP] = self.first_rsp
        self.in_kernel = False
        """True in the middle of guest code: running, preempted or asleep there."""
        self.voluntary_switches = 0
        """Number of voluntary context switches, by sleeping (``nvcsw``)."""
        self.value = 0
        """Return value of its function, once it is DONE."""
        self.entry: tuple[int, tuple[int, ...]] | None = None
        """Function and arguments of a task that hasn't started."""
        self.return_rsp = 0

    @property
    def first_rsp(self) -> int:
        """Stack pointer at which its calls begin."""
        return self.stack_top - PT_REGS_ROOM

    def wake(self) -> bool:
        """Make a sleeping task runnable; False if it was not asleep (``try_to_wake_up``)."""
        if self.state is not TaskState.SLEEPING:
            return False
        self.state = TaskState.RUNNABLE
        return True

    def register(self, name: str) -> int:
        """Saved register of a task that is not running."""
        return self.registers[SAVED.index(name)]

    def capture(self) -> TaskRecord:
        """State for a snapshot."""
        return TaskRecord(
            self.address,
            self.state,
            tuple(self.registers),
            self.in_kernel,
            self.voluntary_switches,
            self.value,
            self.entry,
            self.return_rsp,
        )

    def restore(self, record: TaskRecord) -> None:
        """Return to a state from ``capture``."""
        self.address, self.state, self.registers = record.address, record.state, list(record.registers)
        self.in_kernel, self.voluntary_switches = record.in_kernel, record.voluntary_switches
        self.value, self.entry, self.return_rsp = record.value, record.entry, record.return_rsp

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.state}>"
