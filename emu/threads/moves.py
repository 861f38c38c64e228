"""Moves that are no steps: what a scheduler or a debugger's user decides about threads."""

from dataclasses import dataclass

from emu.threads.kernel_threads import KernelThreads
from emu.threads.thread import TaskThread, Thread


@dataclass(frozen=True, slots=True)
class Move:
    """Root of all moves."""

    def perform(self, threads: KernelThreads) -> None:
        """Make the move."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Begin(Move):
    """A thread comes to be."""

    thread: Thread

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        self.thread.begin()


@dataclass(frozen=True, slots=True)
class StartCall(Move):
    """A task that is in no call begins its next one, on an idle vCPU."""

    thread: TaskThread
    cpu: int

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        self.thread.start_call(self.cpu)


@dataclass(frozen=True, slots=True)
class Preempt(Move):
    """A task loses its vCPU."""

    thread: TaskThread

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        vcpu = self.thread.vcpu
        assert vcpu is not None
        vcpu.yield_task()
        threads.note_quiescence()


@dataclass(frozen=True, slots=True)
class Wake(Move):
    """A sleeping task can go on."""

    thread: TaskThread

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        assert self.thread.task is not None
        self.thread.task.wake()


@dataclass(frozen=True, slots=True)
class PlaceTask(Move):
    """A task that no vCPU runs is to go on on another one."""

    thread: TaskThread
    cpu: int

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        self.thread.cpu = self.cpu


@dataclass(frozen=True, slots=True)
class Resume(Move):
    """A task that can go on gets its vCPU, and makes no step yet."""

    thread: TaskThread

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        assert self.thread.task is not None
        threads.kernel.machine.vcpus[self.thread.cpu].switch_to(self.thread.task)


@dataclass(frozen=True, slots=True)
class Adopt(Move):
    """A vCPU sees what was written to text: the pending writes over an address, or all, as if it had serialised."""

    cpu: int
    address: int | None = None

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        vcpu = threads.kernel.machine.vcpus[self.cpu]
        if self.address is None:
            vcpu.serialize()
        else:
            vcpu.see_new(self.address)
