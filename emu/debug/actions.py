"""Moves that a debugger makes beside those of threads: every state is what a sequence of moves leaves."""

from dataclasses import dataclass

from emu.machine.paging import NX
from emu.machine.registers import SAVED
from emu.threads.kernel_threads import KernelThreads
from emu.threads.moves import Move
from emu.threads.thread import TaskThread, Thread


@dataclass(frozen=True, slots=True)
class Go(Move):
    """A thread makes one step: an instruction of a task, the way to an operation's next point."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class SetRegister(Move):
    """A register of a task is changed."""

    thread: TaskThread
    name: str
    value: int

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        vcpu, task = self.thread.vcpu, self.thread.task
        if vcpu is None:
            assert task is not None
            task.registers[SAVED.index(self.name)] = self.value
        elif self.name == "gs_base":
            vcpu.gs_base = self.value
        else:
            setattr(vcpu.regs, self.name, self.value)


@dataclass(frozen=True, slots=True)
class WriteMemory(Move):
    """Guest memory is changed; text for every vCPU at once."""

    address: int
    data: bytes

    def perform(self, threads: KernelThreads) -> None:
        """See Move."""
        machine, address = threads.kernel.machine, self.address
        entry = machine.page_entry(address)
        if not entry or entry & NX:
            machine.write(address, self.data)
            return
        pending = [bool(vcpu.view.pending) for vcpu in machine.vcpus]
        machine.write_text(address, self.data)
        for vcpu, others in zip(machine.vcpus, pending, strict=True):
            if others:
                vcpu.see_new(address)
            else:
                vcpu.serialize()
