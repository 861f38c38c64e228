"""Rules for steps of a kernel's threads, common to schedulers and the debugger."""


from emu.kernel.kernel import Kernel
from emu.kernel.process_context import Lock, Point, PointKind
from emu.machine.task import TaskState
from emu.machine.vcpu import RunStop, RunStopReason, Vcpu
from emu.threads.thread import OperationThread, TaskThread, Thread


class KernelThreads:
    """Threads of one kernel. The int3 entry is a separate step, before which interrupts are off."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.trapped: set[int] = set()
        """vCPUs that have executed an int3 whose entry has not run yet: they take no interrupts."""
        self._driven: Vcpu | None = None
        kernel.machine.on_int3.insert(0, self._on_int3)

    def close(self) -> None:
        """Let int3s be handled immediately again."""
        self.kernel.machine.on_int3.remove(self._on_int3)

    # Tasks ----------------------------------------------------------------------------------------------------------

    def advance(self, thread: TaskThread, vcpu: Vcpu, steps: int) -> RunStop | None:
        """Run a vCPU's current task for ``steps`` steps (``Vcpu.advance``); None if it can continue.

        After an int3 (``trapped``) it keeps the vCPU. GuestFault, and exceptions of host calls.
        """
        self._driven = vcpu
        try:
            stop = vcpu.advance(steps)
        finally:
            self._driven = None
        if stop is not None:
            if vcpu.index in self.trapped:
                vcpu.switch_to(stop.task)
            else:
                if stop.reason is RunStopReason.RETURNED:
                    thread.call_returned()
                self.kernel.rcu.note_quiescence()
        return stop

    def _on_int3(self, vcpu: Vcpu) -> bool:
        if vcpu is not self._driven or vcpu.is_nested:
            return False
        self.trapped.add(vcpu.index)
        vcpu.preempt()
        return True

    def enter_int3(self, vcpu: Vcpu) -> bool:
        """Run the int3 entry of a trapped vCPU; False if no handler accepts the int3, and it stays trapped."""
        others = [answer for answer in self.kernel.machine.on_int3 if answer != self._on_int3]
        if not any(answer(vcpu) for answer in others):
            return False
        self.trapped.discard(vcpu.index)
        return True

    def adopt(self, cpu: int, address: int | None = None) -> None:
        """Let a vCPU see pending writes to text: those at an address, or all, as if it had serialised."""
        vcpu = self.kernel.machine.vcpus[cpu]
        if address is None:
            vcpu.serialize()
        else:
            vcpu.see_new(address)

    def is_idle(self, cpu: int) -> bool:
        """True if a vCPU runs no task."""
        vcpu = self.kernel.machine.vcpus[cpu]
        return vcpu.task is vcpu.idle

    # Blocked threads ------------------------------------------------------------------------------------------------

    def waits_for(self, point: Point | None) -> str:
        """Reason why an operation can't continue from a point; empty if it can."""
        if point is None or point.on is None:
            return ""
        kind, on = point.kind, point.on
        if kind is PointKind.LOCK:
            return f"{on.name} is held" if isinstance(on, Lock) and on.held else ""
        if kind is PointKind.IPI:
            return f"cpu {on} is on the way from an int3 to its entry: interrupts are off" if on in self.trapped else ""
        if kind is PointKind.GRACE_PERIOD and self.kernel.rcu.is_pending(on):
            return f"{point.what}: the grace period is not over"
        return ""

    def why_blocked(self, thread: Thread) -> str:
        """Reason why a thread that is not done can't make a step; empty if it can."""
        if isinstance(thread, OperationThread):
            return self.waits_for(thread.point)
        assert isinstance(thread, TaskThread)
        assert thread.task is not None
        if thread.task.state is TaskState.SLEEPING:
            return "asleep"
        if thread.vcpu is None and not self.is_idle(thread.cpu):
            return f"cpu {thread.cpu} runs {self.kernel.machine.vcpus[thread.cpu].task.name}"
        return ""
