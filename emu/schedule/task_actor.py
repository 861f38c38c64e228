"""Guest tasks as actors: each makes its calls, one after the other, on the vCPUs that it may use."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from emu.errors import GuestFault
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.task import Task, TaskState
from emu.machine.vcpu import RunStopReason, Vcpu
from emu.schedule.action import ScheduleAction
from emu.schedule.actor import Where
from emu.schedule.footprint import Footprint
from emu.schedule.violation import Violation
from emu.threads.moves import Do
from emu.threads.thread import GuestCall, TaskThread

if TYPE_CHECKING:
    from emu.schedule.simulation import World

CPUS, VIEWS, PREEMPT = "ABCDEFGH", "NOQ", "P"
"""Choices in a task's tokens: the CPU to continue on, the one of ``views`` to fetch, preemption."""


class GuestActor(TaskThread):
    """A task on one of the vCPUs ``cpus``; the first is preferred.

    ``preemptible`` tells whether a vCPU's task may be preempted, ``migratable`` whether a task may continue elsewhere.
    A task is preempted at most ``preemptions`` times, so that every schedule ends.
    """

    task: Task

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
        super().__init__(world.kernel, index + 1, task.name, calls, cpus[0], task)
        self.begin()
        self._world, self._threads, self._index, self.letter = world, world.threads, index, letter
        self.cpus = tuple(cpus)
        self._preemptible, self._migratable = preemptible, migratable
        self._preemptions = preemptions
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
        self._extra = Footprint()

    @property
    def thread(self) -> TaskThread:
        return self

    @property
    def finished(self) -> bool:
        return self.begun == len(self.calls) and not self.task.in_kernel

    @property
    def ended(self) -> int:
        """Number of calls that have ended."""
        return self.begun - self.task.in_kernel

    @property
    def call(self) -> GuestCall | None:
        """The current call, or the next one."""
        ended = self.ended
        return self.calls[ended] if ended < len(self.calls) else None

    def actions(self) -> list[ScheduleAction]:
        vcpu = self.vcpu
        if vcpu is None:
            if self.task.state is TaskState.SLEEPING:
                return [self._wakes]
            if self.task.in_kernel:
                stays = self._migratable is None or not self._migratable(self.task)
                comes, cpus = self._returns, (self.cpu,) if stays else self.cpus
            elif self.begun == len(self.calls):
                return []
            else:
                comes, cpus = self._starts, self.cpus
            return [comes[cpu] for cpu in cpus if self._threads.is_idle(cpu)]
        found = [self._step]
        if vcpu.index not in self._threads.trapped:
            if vcpu.view.pending:
                found += self._views(vcpu)
            if self._preemptible is not None and self._preemptions and self._preemptible(vcpu):
                found.append(ScheduleAction(self._index, self.letter + PREEMPT, "is preempted"))
        return found

    def moves(self, token: str) -> Sequence[Do]:
        vcpu, variant = self.vcpu, token[1:]
        if vcpu is None:
            if self.task.state is TaskState.SLEEPING:
                return [Do(self.wake)]
            cpu = CPUS.index(variant) if variant else self.cpus[0]
            if self.is_done:
                return [Do(self.start_call, (cpu,))]
            return [Do(self.place, (cpu,)), Do(self.resume)]
        if variant == PREEMPT:
            return [Do(self.preempt)]
        fetched = views(vcpu)[VIEWS.index(variant)] if variant else ()
        return [Do(self._threads.adopt, (vcpu.index, address)) for address in fetched]

    def perform(self, action: ScheduleAction, steps: int) -> int:
        vcpu, threads = self.vcpu, self._threads
        if vcpu is None or action.token[1:]:
            for move in self.moves(action.token):
                move.perform()
            previous, vcpu = vcpu, self.vcpu
            if vcpu is None:
                self._preemptions -= previous is not None
                return 1
            if previous is None:
                steps = 0
        try:
            if not steps:
                call = self.calls[self.begun - 1]
                if call.begun < 0:
                    call.begun = self._world.step
            elif vcpu.index in threads.trapped:
                self._world.trap(vcpu)
                steps = 0
            else:
                if self._world.watches or steps == 1:
                    self._world.before_instruction(self, vcpu, vcpu.regs.rip)
                    steps = 1
                elif vcpu.view.pending:
                    steps = 1
            return self._advance(vcpu, steps)
        except GuestFault as fault:
            kind = "torn instruction" if self._world.is_torn(self) else fault.kind
            violation = Violation(kind, str(fault))
            violation.steps = max(steps - max(vcpu.engine.left, 0), 1)
            raise violation from fault

    def where(self) -> Where:
        vcpu = self.vcpu
        if vcpu is None:
            call = self.call
            if call is None:
                return Where("done")
            if self.task.state is TaskState.SLEEPING:
                return Where("asleep", call.name)
            return Where("calls" if self.is_done else "preempted", call.name)
        if vcpu.index in self._threads.trapped:
            return Where("int3 entry", "", vcpu.regs.rip - 1)
        return Where("code", "", vcpu.regs.rip)

    def footprint(self, action: ScheduleAction) -> Footprint:
        found = self._extra = Footprint()
        vcpu = self.vcpu
        task = ("task", self.letter)
        found.writes.add(task)
        if vcpu is None or action.token[1:] == PREEMPT:
            found.writes.add(("rcu", ""))
            found.writes.update(("cpu", cpu) for cpu in self.cpus)
            return found
        if vcpu.index in self._threads.trapped:
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
        pass

    def _advance(self, vcpu: Vcpu, steps: int) -> int:
        """Execute ``steps`` visible instructions, and everything up to the next one."""
        memory, rcu = self._world.memory, self._world.kernel.rcu
        begun = rcu.begun
        # Host calls on the way may free memory and begin grace periods.
        memory.footprint = self._extra
        try:
            stop = self._threads.advance(self, vcpu, steps)
        finally:
            memory.footprint = None
        if rcu.begun != begun:
            self._extra.writes.add(("rcu", ""))
        made = max(steps, 1)
        if stop is None:
            return made
        if vcpu.index not in self._threads.trapped:
            self._extra.writes.update((("rcu", ""), ("cpu", vcpu.index)))
            if stop.reason is RunStopReason.RETURNED:
                call = self.calls[self.begun - 1]
                call.value, call.ended = stop.value, self._world.step
                changed = self.not_preserved()
                if changed:
                    raise Violation("register not preserved", changed)
        return max(made - max(vcpu.engine.left, 0), 1)

    # Text that this vCPU has not adopted ----------------------------------------------------------------------------

    def _views(self, vcpu: Vcpu) -> list[ScheduleAction]:
        return [
            ScheduleAction(self._index, self.letter + VIEWS[number], "fetches what was just written")
            for number in range(len(views(vcpu)))
        ]


def views(vcpu: Vcpu) -> list[tuple[int, ...]]:
    """Sets of pending writes, by address, with which the instruction at rip can be fetched: all, then fewer."""
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
