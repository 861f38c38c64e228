"""A guest task as an actor: it calls functions, one after the other, on the vCPUs that it may run on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from emu.errors import GuestFault
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.registers import GENERAL
from emu.machine.task import Task, TaskState
from emu.machine.vcpu import RunStop, RunStopReason, Vcpu
from emu.schedule.action import ScheduleAction
from emu.schedule.actor import Where
from emu.schedule.footprint import Footprint
from emu.schedule.violation import Violation

if TYPE_CHECKING:
    from emu.schedule.simulation import World

CPUS, VIEWS, PREEMPT = "ABCDEFGH", "NOQ", "P"
"""The choices of a task's tokens: which CPU to go on on, which of ``views`` to fetch, to be preempted."""
_SAVED_BY_CALLEES = ("rbx", "rbp", "r12", "r13", "r14", "r15")
KEPT = tuple((GENERAL.index(name), 0x5EED_0000 + number) for number, name in enumerate(_SAVED_BY_CALLEES))
"""Registers that a function preserves, and what they hold before each call."""


@dataclass(slots=True)
class GuestCall:
    """One call of a task, and what it gave. ``begun`` and ``ended`` are numbers of steps."""

    function: int
    args: tuple[int, ...]
    name: str = ""
    value: int | None = None
    begun: int = -1
    ended: int = -1


class GuestActor:
    """A task on one of the vCPUs ``cpus``, the first of which it prefers.

    ``preemptible`` says of a vCPU that its task may be preempted, ``migratable`` of a task that it may go on elsewhere.
    A task is preempted ``preemptions`` times at most, so that every schedule has an end.
    """

    def __init__(
        self,
        world: "World",
        index: int,
        letter: str,
        task: Task,
        calls: Sequence[GuestCall],
        *,
        cpus: Sequence[int] = (0,),
        preemptible: Callable[[Vcpu], bool] | None = None,
        migratable: Callable[[Task], bool] | None = None,
        preemptions: int = 2,
    ) -> None:
        self._world, self._index, self.letter, self.name = world, index, letter, task.name
        self.task, self.calls, self.cpus = task, list(calls), tuple(cpus)
        self._preemptible, self._migratable = preemptible, migratable
        self._preemptions = preemptions
        self._next = 0
        self._vcpu: Vcpu | None = None
        self._last_cpu = self.cpus[0]
        self._step, self._wakes = ScheduleAction(index, letter), ScheduleAction(index, letter, "wakes up", returns=True)
        self._starts, self._returns = (
            {
                cpu: ScheduleAction(
                    index, letter if cpu == self.cpus[0] else letter + CPUS[cpu], f"on cpu {cpu}", returns
                )
                for cpu in self.cpus
            }
            for returns in (False, True)
        )
        self.trapped = False
        """An int3 was executed, and its entry has not run yet: interrupts are off."""
        self._extra = Footprint()

    @property
    def finished(self) -> bool:
        """See Actor."""
        return self._next == len(self.calls)

    @property
    def vcpu(self) -> Vcpu | None:
        """Where it runs."""
        return self._vcpu

    @property
    def ended(self) -> int:
        """Calls that are over."""
        return self._next

    @property
    def call(self) -> GuestCall | None:
        """The call that it is in, or makes next."""
        return self.calls[self._next] if self._next < len(self.calls) else None

    def actions(self) -> list[ScheduleAction]:
        """See Actor."""
        if self._next == len(self.calls):
            return []
        vcpu = self._vcpu
        if vcpu is None:
            if self.task.state is TaskState.SLEEPING:
                return [self._wakes]
            comes = self._starts if self.calls[self._next].begun < 0 else self._returns
            return [comes[cpu] for cpu in self._allowed() if self._world.is_idle(cpu)]
        found = [self._step]
        if not self.trapped:
            if vcpu.view.pending:
                found += self._views(vcpu)
            if self._preemptible is not None and self._preemptions and self._preemptible(vcpu):
                found.append(ScheduleAction(self._index, self.letter + PREEMPT, "is preempted"))
        return found

    def perform(self, action: ScheduleAction, steps: int) -> int:
        """See Actor."""
        vcpu, variant = self._vcpu, action.token[1:]
        if vcpu is None:
            self._leave_sleep_or_start(action)
            return 1
        if variant == PREEMPT:
            vcpu.yield_task()
            self._preemptions -= 1
            self._off_cpu()
            return 1
        try:
            if self.trapped:
                self.trapped = False
                self._world.trap(vcpu)
                return self._advance(vcpu, 0)
            if variant:
                for address in views(vcpu)[VIEWS.index(variant)]:
                    vcpu.see_new(address)
            rip = vcpu.regs.rip
            if self._world.watches or steps == 1:
                self._world.before_instruction(self, vcpu, rip)
                steps = 1
            elif vcpu.view.pending:
                steps = 1
            return self._advance(vcpu, steps)
        except GuestFault as fault:
            violation = self._broken(fault)
            violation.steps = max(steps - max(vcpu.engine.left, 0), 1)
            raise violation from fault

    def where(self) -> Where:
        """See Actor."""
        vcpu = self._vcpu
        if vcpu is None:
            call = self.call
            if call is None:
                return Where("done")
            if self.task.state is TaskState.SLEEPING:
                return Where("asleep", call.name)
            return Where("preempted", call.name) if call.begun >= 0 else Where("calls", call.name)
        if self.trapped:
            return Where("int3 entry", "", vcpu.regs.rip - 1)
        return Where("code", "", vcpu.regs.rip)

    def footprint(self, action: ScheduleAction) -> Footprint:
        """See Actor."""
        found = self._extra = Footprint()
        vcpu = self._vcpu
        task = ("task", self.letter)
        found.writes.add(task)
        if vcpu is None or action.token[1:] == PREEMPT:
            found.writes.add(("rcu", ""))
            found.writes.update(("cpu", cpu) for cpu in self.cpus)
            return found
        if self.trapped:
            found.writes.add(("cpu", vcpu.index))
            found.reads.add(("text", "patches"))
            return found
        rip = vcpu.regs.rip
        found.code(rip, rip + 1, writes=False)
        instruction = self._world.visible.instructions.get(rip)
        if instruction is None:
            return found
        registers, gs_base = vcpu.regs.save(), vcpu.gs_base
        for access in instruction.accesses:
            address = access.address(registers, gs_base)
            if not self._world.is_private(self.task, address):
                found.memory(address, access.size, writes=access.writes)
        if instruction.is_site:
            found.text(rip, SITE_SIZE, writes=False)
            found.reads.add(("cpu", vcpu.index))
        return found

    def end(self) -> None:
        """See Actor."""

    # Running --------------------------------------------------------------------------------------------------------

    def _allowed(self) -> Sequence[int]:
        call = self.call
        assert call is not None
        if call.begun < 0:
            return self.cpus
        if self._migratable is None or not self._migratable(self.task):
            return (self._last_cpu,)
        return self.cpus

    def _leave_sleep_or_start(self, action: ScheduleAction) -> None:
        task, call = self.task, self.call
        assert call is not None
        if task.state is TaskState.SLEEPING:
            task.wake()
            return
        cpu = next(cpu for cpu, start in self._starts.items() if start.token == action.token)
        if call.begun < 0:
            call.begun = self._world.step
            task.state, task.entry = TaskState.RUNNABLE, (call.function, call.args)
            task.in_kernel = False
            for position, value in KEPT:
                task.registers[position] = value
        vcpu = self._vcpu = self._world.kernel.machine.vcpus[cpu]
        self._last_cpu = cpu
        vcpu.switch_to(task)
        try:
            self._advance(vcpu, 0)
        except GuestFault as fault:
            raise self._broken(fault) from fault

    def _advance(self, vcpu: Vcpu, steps: int) -> int:
        """Execute so many visible instructions, and everything up to the next one."""
        memory, rcu = self._world.memory, self._world.kernel.rcu
        begun = rcu.begun
        # Host calls on the way may free memory and begin grace periods.
        memory.footprint = self._extra
        try:
            stop = vcpu.advance(steps)
        finally:
            memory.footprint = None
        if rcu.begun != begun:
            self._extra.writes.add(("rcu", ""))
        made = max(steps, 1)
        if stop is None:
            return made
        if self._world.trapped_on(vcpu):
            # It stopped to let its trap be an event of its own: it has not left the CPU.
            vcpu.switch_to(self.task)
            self.trapped = True
        else:
            self._stopped(stop)
            self._extra.writes.add(("rcu", ""))
            self._extra.writes.add(("cpu", vcpu.index))
        left = vcpu.engine.left
        return max(made - max(left, 0), 1)

    def _stopped(self, stop: RunStop) -> None:
        self._off_cpu()
        if stop.reason is RunStopReason.RETURNED:
            call = self.call
            assert call is not None
            call.value, call.ended = stop.value, self._world.step
            self._next += 1
            self.task.state = TaskState.RUNNABLE if self.call else TaskState.DONE
            self._check_registers()

    def _broken(self, fault: GuestFault) -> Violation:
        self._vcpu, self._next = None, len(self.calls)
        return Violation("torn instruction" if self._world.is_torn(self) else fault.kind, str(fault))

    def _off_cpu(self) -> None:
        self._vcpu = None
        self._world.note_quiescence()

    def _check_registers(self) -> None:
        for position, value in KEPT:
            if self.task.registers[position] != value:
                name = GENERAL[position]
                found = self.task.registers[position]
                raise Violation("register not preserved", f"{name} is {found:#x} after the call, not {value:#x}")

    # Text that this vCPU has not adopted ----------------------------------------------------------------------------

    def _views(self, vcpu: Vcpu) -> list[ScheduleAction]:
        return [
            ScheduleAction(self._index, self.letter + VIEWS[number], "fetches what was just written")
            for number in range(len(views(vcpu)))
        ]


def views(vcpu: Vcpu) -> list[tuple[int, ...]]:
    """Sets of pending writes, by address, that the instruction at rip can be fetched with: all, then fewer."""
    rip, seen = vcpu.regs.rip, vcpu.view.seen
    addresses = sorted(
        {
            write.address
            for write in vcpu.view.pending
            if write.address < rip + SITE_SIZE and rip < write.end and write.serial not in seen
        }
    )
    found = [chosen for count in range(len(addresses), 0, -1) for chosen in combinations(addresses, count)]
    return found[: len(VIEWS)]
