"""A virtual CPU: calls, tasks, host calls and faults."""

import enum
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn.unicorn_const import UC_ERR_INSN_INVALID

from emu.counting.counts import InstructionCounts
from emu.errors import EmuError, GuestFault, GuestTimeout, MachineError
from emu.machine.address_map import ADDRESS_MASK
from emu.machine.core import Core
from emu.machine.engine import UNLIMITED, Exit
from emu.machine.faults import FAULTS, GENERAL_PROTECTION, INT3, PAGE_FAULT, access_of, kind_of
from emu.machine.hostcall import RETURN_OFFSET
from emu.machine.registers import ARGUMENTS, RIP, RSP, RegisterBatch
from emu.machine.task import Task, TaskState
from emu.machine.text_view import TextWrite

if TYPE_CHECKING:
    from emu.machine.machine import Machine


class RunStopReason(enum.StrEnum):
    """Reason why a task gave its vCPU back."""

    RETURNED = "returned"
    SLEEPING = "sleeping"
    PREEMPTED = "preempted"


@dataclass(eq=False)
class Call:
    """A call that has returned: ``value`` is rax."""

    value: int
    stop: RunStopReason = RunStopReason.RETURNED
    _vcpu: "Vcpu | None" = None
    _counts: InstructionCounts | None = None

    @property
    def counts(self) -> InstructionCounts | None:
        """Instructions executed, nested calls included; None for a nested call, and without counting."""
        if self._vcpu is not None:
            self._counts, self._vcpu = self._vcpu.counts(), None
        return self._counts


@dataclass(frozen=True, slots=True)
class RunStop:
    """End of a run of a task; ``value`` is its function's return value, once it has returned."""

    reason: RunStopReason
    task: Task
    value: int | None = None


@dataclass(frozen=True, slots=True)
class VcpuRecord:
    """State of a vCPU in a snapshot."""

    registers: list[int]
    gs_base: int
    task: Task
    pending: list[TextWrite]
    seen: set[int]


class Vcpu(Core):
    """One CPU of a machine: calls functions and runs tasks on its core."""

    def __init__(self, machine: "Machine", index: int) -> None:
        super().__init__(machine, index)
        self.idle = Task(f"swapper/{index}", 0)
        """Task that runs calls from outside."""
        self.idle.state = TaskState.RUNNING
        self.regs.load(self.idle.registers)
        self.task = self.idle
        """The current task."""
        self._entry_batches = [
            RegisterBatch(self._handle, (*ARGUMENTS[:count], "rsp")) for count in range(len(ARGUMENTS) + 1)
        ]
        self._result = RegisterBatch(self._handle, ("rax", "rsp"))
        self._depth = 0
        self._outer_left = 0
        self.host_entries = 0
        """Number of times that code outside the guest ran for this vCPU: host calls, traps, repaired faults."""
        self._request: RunStopReason | None = None
        self._last_call: weakref.ref[Call] | None = None

    @property
    def is_running(self) -> bool:
        """True while a call or a run is under way, including its host calls."""
        return self._depth > 0

    @property
    def is_nested(self) -> bool:
        """True while a call from within a host call is under way."""
        return self._depth > 1

    def unanswered(self) -> GuestFault:
        """The fault of an int3 without a handler; rip is after the int3."""
        return self._fault("unhandled int3", self.regs.rip - 1)

    @property
    def left(self) -> int:
        """Instructions left of the outermost run's limit; a nested call counts as one, with its host call."""
        return self._outer_left if self._depth > 1 else self.engine.left

    def cut_short(self) -> None:
        """End the outermost run before its next instruction. For host calls and int3 handlers."""
        if self._depth > 1:
            self._outer_left = 0
        else:
            self.engine.limit(0)

    # Calls and tasks ------------------------------------------------------------------------------------------------

    def call(
        self, address: int, *args: int, stack_args: Sequence[int] = (), max_instructions: int | None = None
    ) -> Call:
        """Call a function on the current task, by the System V convention: six register arguments, then the stack's.

        Runs until it returns. A task that sleeps on the way is woken at once. A call from within a host call nests,
        and restores the registers. GuestFault, GuestTimeout (``max_instructions`` executed without a return), and
        exceptions of host calls.
        """
        if self._depth:
            saved = self.regs.save()
            try:
                value = self._call(address, args, stack_args, max_instructions, saved[RSP])
            finally:
                self.regs.load(saved)
            return Call(value)
        self.reset_counts()
        task = self.task
        task.in_kernel = True
        try:
            value = self._call(address, args, stack_args, max_instructions, task.first_rsp)
        finally:
            task.in_kernel = False
        call = Call(value, _vcpu=self if self.counter is not None else None)
        self._last_call = weakref.ref(call)
        return call

    def _call(
        self, address: int, args: Sequence[int], stack_args: Sequence[int], limit: int | None, stack: int
    ) -> int:
        base = self._enter(address, args, stack_args, stack)
        if self._drive(address, limit, sleeps=False) is None:
            raise self._fault(f"still running after {limit} instructions", self.regs.rip, timeout=True)
        return self._returned(base)

    def _enter(self, address: int, args: Sequence[int], stack_args: Sequence[int], stack: int) -> int:
        """Set registers and stack as a call instruction does; returns rsp after the return."""
        if len(args) > len(ARGUMENTS):
            stack_args = (*args[len(ARGUMENTS) :], *stack_args)
            args = args[: len(ARGUMENTS)]
        base = (stack - 8 * len(stack_args)) & ~15
        frame = [self.machine.host_calls.return_address, *stack_args]
        self.machine.write(base - 8, b"".join((word & ADDRESS_MASK).to_bytes(8, "little") for word in frame))
        self._entry_batches[len(args)].write([*(argument & ADDRESS_MASK for argument in args), base - 8])
        if self.counter is not None:
            self.counter.push_return(self.machine.host_calls.return_address)
        return base

    def _returned(self, base: int) -> int:
        value, rsp = self._result.read()
        if rsp != base:
            raise self._fault("stack imbalance", self.regs.rip, note=f"rsp is {rsp:#x} after the return, not {base:#x}")
        return value

    def run(self, task: Task, *, preempt_after: int | None = None) -> RunStop:
        """Run a task until it returns, sleeps, or has executed ``preempt_after`` instructions; then the vCPU is idle.

        MachineError if the task is not runnable or the vCPU is busy. A task whose code faults is DONE; Ctrl-C preempts
        the task.
        """
        if self._depth or task is self.idle:
            raise MachineError(f"vcpu {self.index} is running {self.task.name}, and can't run {task.name}")
        self.switch_to(task)
        self.collect_counts()
        stop = self.advance(preempt_after)
        if stop is None:
            self.yield_task()
            return RunStop(RunStopReason.PREEMPTED, task)
        return stop

    def advance(self, limit: int | None = None) -> RunStop | None:
        """Resume the current task, which ``switch_to`` set; None if it reached the limit and can be resumed.

        After any other stop or a fault the vCPU is idle again.
        """
        task = self.task
        try:
            reason = self._drive(self.regs.rip, limit)
            if reason is None:
                return None
            if reason is RunStopReason.RETURNED:
                self._finish(task)
            elif reason is RunStopReason.SLEEPING:
                task.state = TaskState.SLEEPING
                task.voluntary_switches += 1
            else:
                task.state = TaskState.RUNNABLE
        except Exception:
            task.state, task.in_kernel = TaskState.DONE, False
            self._switch_away()
            raise
        except BaseException:
            self.yield_task()
            raise
        self._switch_away()
        return RunStop(reason, task, task.value if reason is RunStopReason.RETURNED else None)

    def yield_task(self) -> None:
        """Take the vCPU from its task, which becomes runnable."""
        self.task.state = TaskState.RUNNABLE
        self._switch_away()

    def _finish(self, task: Task) -> None:
        task.value = self._returned(task.return_rsp)
        task.state, task.in_kernel = TaskState.DONE, False

    def switch_to(self, task: Task) -> None:
        """Make a runnable task this vCPU's current one, without running it; a new one is at its entry. MachineError."""
        if task is self.task:
            return
        if task.state is not TaskState.RUNNABLE:
            raise MachineError(f"task {task.name} is {task.state}")
        self._save_current()
        self.regs.load(task.registers)
        if task.entry is not None:
            address, args = task.entry
            task.return_rsp = self._enter(address, args, (), task.first_rsp)
            self.regs.rip = address
            task.entry, task.in_kernel = None, True
        task.state = TaskState.RUNNING
        self._set_current(task)

    def _switch_away(self) -> None:
        task = self.task
        task.registers = self.regs.save()
        if self.machine.host_calls.is_stub(task.register("rip") - 1):
            # Ctrl-C came between a stub's hlt and its function: execute the stub again.
            task.registers[RIP] -= 1
        self.regs.load(self.idle.registers)
        self.idle.state = TaskState.RUNNING
        self._set_current(self.idle)

    def _save_current(self) -> None:
        if self.task is not self.idle:
            raise MachineError(f"vcpu {self.index} is running {self.task.name}")
        self.idle.registers = self.regs.save()
        self.idle.state = TaskState.RUNNABLE

    def _set_current(self, task: Task) -> None:
        self.task = task
        offset = self.machine.current_offset
        if offset is not None:
            self.machine.write_u64(self.gs_base + offset, task.address)

    def sleep(self) -> None:
        """From a host call: put the current task to sleep once the host call returns (``schedule``)."""
        self._request = RunStopReason.SLEEPING

    def preempt(self) -> None:
        """From a host call: take the vCPU from the current task once the host call returns."""
        self._request = RunStopReason.PREEMPTED

    def step(self, n: int = 1) -> RunStopReason | None:
        """Execute ``n`` instructions from the current registers; RETURNED if the task's function returned, else None.

        A host call is two: its stub's hlt, which runs the function, and its ret. Each iteration of a rep is one.
        """
        return self._drive(self.regs.rip, n, sleeps=False)

    def args(self, n: int) -> list[int]:
        """The first ``n`` arguments of the function that was just entered (a host call's): registers, then stack."""
        *registers, rsp = self._entry_batches[-1].read()
        if n <= len(registers):
            return registers[:n]
        stack = self.machine.read(rsp + 8, 8 * (n - len(registers)))
        return registers + [int.from_bytes(stack[at : at + 8], "little") for at in range(0, len(stack), 8)]

    # Running --------------------------------------------------------------------------------------------------------

    def _drive(self, rip: int, limit: int | None, *, sleeps: bool = True) -> RunStopReason | None:
        """Run from ``rip`` until the outermost function returns or the task must stop, and handle exits on the way.

        None: the limit was reached. Without ``sleeps``, a task that sleeps is woken at once.
        """
        engine = self.engine
        outer = engine.left if self._depth and engine.is_limited else None
        held = engine.hold(held=True) if self._depth else False
        if self._depth == 1 and outer is not None:
            self._outer_left = outer
        engine.limit(limit if limit is not None or outer is None else UNLIMITED)
        self._depth += 1
        try:
            return self._loop(rip, sleeps)
        finally:
            self._depth -= 1
            if self._depth:
                engine.hold(held=held)
                engine.limit(self._outer_left if self._depth == 1 and outer is not None else outer)

    def _loop(self, rip: int, sleeps: bool) -> RunStopReason | None:
        host_calls = self.machine.host_calls
        ticks = 0
        while True:
            reached, rip = self.execute(rip)
            if reached is Exit.INTERRUPT:
                rip = self._interrupt(self.engine.interrupt_number, rip)
            elif reached is Exit.LIMIT:
                return None
            elif reached is Exit.ERROR:
                raise self._engine_error(rip)
            elif host_calls.is_stub(rip - 1):
                if rip - 1 == host_calls.return_address:
                    return RunStopReason.RETURNED
                rip = self._host_call(rip - 1)
            elif reached is Exit.TICK:
                ticks += 1
                if ticks > self.machine.max_ticks:
                    raise self._fault("still running after all the host time a run is given", rip, timeout=True)
            else:
                raise self._fault("hlt", rip - 1)
            if self._request is not None:
                reason, self._request = self._request, None
                if sleeps:
                    return reason
                self.task.voluntary_switches += reason is RunStopReason.SLEEPING

    def _host_call(self, stub: int) -> int:
        call = self.machine.host_calls.at(stub)
        if call is None:
            raise self._fault("no such host call", stub)
        self.regs.rip = stub + RETURN_OFFSET
        self.host_entries += 1
        try:
            result = call.function(self)
        except Exception as error:
            if not isinstance(error, GuestFault):
                error.add_note(f"in the host call {call.name} on vcpu {self.index}, called from {self._caller()}")
            raise
        if result is not None:
            self.regs.rax = result
        return self.regs.rip

    def _caller(self) -> str:
        try:
            address = self.machine.read_u64(self.regs.rsp)
        except EmuError:
            return "nowhere"
        return self.machine.describe(address) or f"{address:#x}"

    def _interrupt(self, number: int, rip: int) -> int:
        machine = self.machine
        self.host_entries += 1
        if number == INT3:
            freed = machine.images.freed(rip - 1)
            if freed is not None:
                raise self._fault("execution of freed memory", rip - 1, note=f"{freed} was freed")
            if any(answer(self) for answer in list(machine.on_int3)):
                return self.regs.rip
            raise self.unanswered()
        if number not in FAULTS:
            raise self._fault(kind_of(number), rip)
        if number in (PAGE_FAULT, GENERAL_PROTECTION) and any(fixed(self, rip) for fixed in list(machine.on_fault)):
            self.forget_exception()
            return self.regs.rip
        if number != PAGE_FAULT:
            raise self._fault(kind_of(number), rip, clean=True)
        address = self.regs.cr2
        freed = machine.images.freed(address)
        note = f"{freed} was freed" if freed else machine.regions_at(address)
        raise self._fault(kind_of(number), rip, address=address, clean=True, note=note)

    def _engine_error(self, rip: int) -> GuestFault:
        if self.engine.error == UC_ERR_INSN_INVALID:
            return self._fault("invalid opcode", rip, clean=True)
        return self._fault(f"engine error {self.engine.error}", rip, clean=True)

    def _fault(
        self,
        kind: str,
        rip: int,
        *,
        address: int | None = None,
        note: str | None = None,
        timeout: bool = False,
        clean: bool = False,
    ) -> GuestFault:
        registers = self.regs.as_dict()
        registers["rip"] = rip
        if clean:
            self.forget_exception()
        access = access_of(self, rip, address) if address is not None else None
        error = GuestTimeout if timeout else GuestFault
        line = self.machine.describe(rip)
        return error(
            kind, rip=rip, registers=registers, vcpu=self.index, address=address, access=access, line=line, note=note
        )

    # Snapshots ------------------------------------------------------------------------------------------------------

    def capture(self) -> VcpuRecord:
        """State for a snapshot."""
        view = self.view
        return VcpuRecord(self.regs.save(), self.gs_base, self.task, list(view.pending), set(view.seen))

    def restore(self, record: VcpuRecord) -> None:
        """Return to a state from ``capture``."""
        self.regs.load(record.registers)
        self.gs_base, self.task = record.gs_base, record.task
        self.view.restore(record.pending, record.seen)
        self.mappings_changed()

    # Counting -------------------------------------------------------------------------------------------------------

    def counts(self) -> InstructionCounts | None:
        """Instructions executed since the last ``reset_counts``, which every call from outside begins with; or None."""
        self.settle_counter()
        return self.machine.counts_of(self.counter) if self.counter is not None else None

    def reset_counts(self) -> None:
        """Restart counting."""
        if self.counter is not None:
            self.settle_counter()
            self.collect_counts()
            self.counter.reset()

    def collect_counts(self) -> None:
        """Compute the last call's counts while the counter and the images still have the data for it."""
        call = self._last_call() if self._last_call is not None else None
        if call is not None:
            _ = call.counts
        self._last_call = None

    def close(self) -> None:
        """Remove all hooks from the engine and release it."""
        counter = self.counter
        if counter is not None:
            self.settle_counter()
            self.collect_counts()
            self.counter = None  # first, so that the watchdog does not use it
            counter.remove()
        self.engine.close()
