"""A schedule of ``tramp explore`` in the debugger: its steps, and the instructions within them."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from emu.debug import Breakpoint, DebugStop, DebugStopReason, TaskThread, Thread
from emu.debug import Debugger as KernelDebugger
from emu.debug.actions import Begin, CallAgain, Resume
from emu.debug.threads import OperationThread
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import ControlTask
from emu.machine.task import Task, TaskState
from emu.schedule.action import GRACE_LETTER, BadSchedule, decode
from emu.schedule.operation_actor import GRACE_VARIANTS, RELEASES
from emu.schedule.simulation import World
from emu.schedule.task_actor import CPUS, KEPT, PREEMPT, VIEWS, GuestCall, views
from trampoline.tools.debugger.debugger import BpfDebugger
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.session import ScheduleSession


class ScenarioTask(TaskThread):
    """A task of a scenario, which makes its calls one after the other."""

    def __init__(self, number: int, letter: str, task: Task, calls: list[GuestCall], cpus: tuple[int, ...]) -> None:
        super().__init__(number, task.name, calls[0].function, calls[0].args, (), cpus[0])
        self.letter, self.calls = letter, calls
        self._task = task

    def make_task(self, kernel: Kernel) -> Task:
        """The scenario's: it is in no function yet."""
        self._task.entry, self._task.state = None, TaskState.DONE
        return self._task


class ScenarioOperation(OperationThread):
    """An operation of a scenario, or callbacks; it also stops before its stores to memory that others may know of.

    ``owner``: whose the memory is that it allocates, until others know of it.
    """

    def __init__(self, world: World, owner: object, number: int, name: str, do: Callable[[], object]) -> None:
        super().__init__(number, name, do)
        self._memory, self._owner = world.memory, owner

    def step(self, control: ControlTask) -> None:
        """See OperationThread."""
        memory = self._memory
        memory.owner = self._owner
        if control.at is not None and control.at.kind in RELEASES:
            memory.release()
        try:
            control.step()
        finally:
            memory.owner = None


@dataclass(frozen=True)
class AtVisible(Breakpoint):
    """Before an instruction before which schedules may let others go on."""

    def addresses(self, debugger: KernelDebugger) -> Iterable[int]:
        """See Breakpoint."""
        assert isinstance(debugger, ScheduleDebugger)
        return debugger.visible


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One step of a schedule: who made it, from where, and at which position of the debugger's line it begins."""

    token: str
    name: str
    where: str
    position: int


class ScheduleDebugger(BpfDebugger):
    """A debugger that stands at the start of a schedule which it has made; going forward makes it again.

    A step that goes another way, by hand, leaves the schedule: its remaining steps are forgotten.
    """

    def __init__(self, session: ScheduleSession, schedule: str) -> None:
        """BadSchedule where the text is none, or does not fit the scenario."""
        tokens = decode(schedule)
        self.session = session
        outcome = session.replay(schedule)
        self.failure = "" if outcome.violation is None else str(outcome.violation).splitlines()[0]
        """What the schedule breaks, in a line, as ``tramp replay`` says it."""
        self._wheres = [
            (taken.action.token, taken.where.text(session.world)) for taken in outcome.taken for _ in range(taken.steps)
        ]
        world = session.world
        world.reset()
        stage = session.stage
        super().__init__(
            stage.lab,
            [*stage.programs, *stage.patches, *session.plan.state],
            restored=self._reset,
        )
        self._cursors: dict[str, int] = {}
        self._periods: list[Thread] = []
        self.schedule: list[ScheduleStep] = []
        """The steps, as far as they could be made."""
        self.ended = DebugStopReason.DONE
        """How the last of them ended."""
        self._letters: dict[str, Thread] = {}
        for letter, task, calls, cpus in session.tasks:
            fresh = [GuestCall(call.function, call.args, call.name) for call in calls]
            self._add(letter, ScenarioTask(self._next_number(), letter, task, fresh, cpus))
        for letter, name in session.operations:
            do = partial(session.operation, name)
            self._add(letter, ScenarioOperation(world, letter, self._next_number(), name, do))
        self._begun = self.position
        for token in tokens:
            self._make(token)
            if self.ended is not DebugStopReason.STEP:
                break
        self.goto(self._begun)

    @property
    def visible(self) -> Iterable[int]:
        """Addresses of the instructions before which others may go on."""
        return self.session.world.visible.instructions

    # Along the schedule ---------------------------------------------------------------------------------------------

    @property
    def schedule_step(self) -> int:
        """How many steps of the schedule are made; one that has begun counts."""
        begins = [step.position for step in self.schedule]
        return bisect_right(begins, self.position - 1)

    def next_in_schedule(self) -> DebugStop:
        """To the end of the present step of the schedule, or of the next one."""
        step = self.schedule_step
        ends = [*(one.position for one in self.schedule[1:]), self._ended_at]
        if self.position >= self._ended_at or self._ended_at > self.end:
            return self.stopped(DebugStopReason.DONE, self.failure or "the schedule is over")
        inside = step > 0 and self.position < ends[step - 1]
        stop = self.goto(ends[step - 1 if inside else step])
        if stop.position == self._ended_at and self.failure:
            return self.stopped(
                DebugStopReason.FAULT if self.ended is DebugStopReason.FAULT else DebugStopReason.DONE, self.failure
            )
        return stop

    def back_in_schedule(self) -> DebugStop:
        """Back to where the present step of the schedule, or the one before, begins."""
        step = self.schedule_step
        if not step:
            return self.stopped(DebugStopReason.START)
        return self.goto(self.schedule[step - 1].position)

    # Making it ------------------------------------------------------------------------------------------------------

    def _add(self, letter: str, thread: Thread) -> None:
        self._begin(Begin(thread), thread)
        self._letters[letter] = thread

    def _reset(self) -> None:
        world = self.session.world
        world.visible.reset()
        world.memory.begin()

    def _make(self, token: str) -> None:
        """One step of the schedule, for the first time."""
        number = len(self.schedule)
        letter, variant = token[0], token[1:]
        thread = self._letters.get(letter)
        if thread is None and letter != GRACE_LETTER:
            raise BadSchedule(f"{token}: nobody has this letter")
        where = self._wheres[number][1] if number < len(self._wheres) else ""
        name = thread.name if thread is not None else "grace periods"
        self.schedule.append(ScheduleStep(token, name, where, self.position))
        if thread is None:
            stop = self._grace(variant)
        elif isinstance(thread, ScenarioTask):
            stop = self._task(thread, variant)
        else:
            self.select(thread)
            stop = self.step()
        self._ended_at = self.position
        self.ended = DebugStopReason.STEP if stop.reason is DebugStopReason.DONE else stop.reason

    def _grace(self, variant: str) -> DebugStop:
        if variant:
            flavour = next(flavour for flavour, letter in GRACE_VARIANTS.items() if letter == variant)
            kind = partial(ScenarioOperation, self.session.world, GRACE_LETTER)
            move = self._record.end_grace_period(flavour, self._next_number(), kind)
            self._periods.append(self._begin(move, move.thread))
        self.select(self._periods[-1])
        return self.step()

    def _task(self, thread: ScenarioTask, variant: str) -> DebugStop:
        self.select(thread)
        vcpu = self._record.vcpu_of(thread)
        if vcpu is None:
            return self._start(thread, variant)
        if variant == PREEMPT:
            self.preempt(thread)
            return self.stopped(DebugStopReason.STEP)
        if not self.is_trapped(thread) and variant:
            for address in views(vcpu)[VIEWS.index(variant)]:
                self.adopt(vcpu.index, address)
        stop = self.step()
        return self._to_visible(thread, stop)

    def _start(self, thread: ScenarioTask, variant: str) -> DebugStop:
        if thread.state == TaskState.SLEEPING:
            self.wake(thread)
            return self.stopped(DebugStopReason.STEP)
        cpu = CPUS.index(variant) if variant else thread.first_cpu
        if thread.state == TaskState.DONE:
            made = self._cursors.get(thread.letter, 0)
            if made >= len(thread.calls):
                raise BadSchedule(f"{thread.name} has no calls left")
            self._cursors[thread.letter] = made + 1
            call = thread.calls[made]
            self._record.make(CallAgain(thread, cpu, call.function, call.args, KEPT))
        else:
            self.place(thread, cpu)
            self._record.make(Resume(thread))
        return self._to_visible(thread, self.stopped(DebugStopReason.STEP))

    def _to_visible(self, thread: ScenarioTask, stop: DebugStop) -> DebugStop:
        """On to where others may go on."""
        if stop.reason is not DebugStopReason.STEP or self.is_trapped(thread) or self._record.vcpu_of(thread) is None:
            return stop
        if self.rip in self.session.world.visible.instructions:
            return stop
        stop = self._search.forward(thread, [AtVisible()], limit=None, reason=DebugStopReason.STEP)
        fine = stop.reason in (DebugStopReason.BREAKPOINT, DebugStopReason.BLOCKED, DebugStopReason.DONE)
        return self.stopped(DebugStopReason.STEP) if fine else stop

    def close(self) -> None:
        """Let go of the session as well."""
        if not self._is_closed:
            super().close()
            self.session.stage.lab.kernel.rcu.automatic = False
            self.session.close()


def debugger_for_schedule(address: str | ScheduleAddress) -> ScheduleDebugger:
    """A debugger for what ``tramp explore`` prints: ``scenario/design/flavour/config/dropped/schedule``.

    BadSchedule, TrampolineError, KernelError where that names nothing.
    """
    found = ScheduleAddress.parse(address) if isinstance(address, str) else address
    session = ScheduleSession(found.scenario, found.design, found.flavour, found.config, dropped=found.dropped)
    try:
        return ScheduleDebugger(session, found.schedule)
    except BaseException:
        session.close()
        raise
