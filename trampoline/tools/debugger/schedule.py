"""Debugger for a schedule of ``tramp explore``: moves by schedule step, or by instruction within a step."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from emu.debug import Breakpoint, DebugStop, DebugStopReason, TaskThread
from emu.debug import Debugger as KernelDebugger
from emu.schedule.action import decode
from emu.schedule.actor import Actor
from trampoline.tools.debugger.debugger import BpfDebugger
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.session import ScheduleSession


@dataclass(frozen=True)
class AtVisible(Breakpoint):
    """Stops before visible instructions, at which a schedule may switch to another actor."""

    def addresses(self, debugger: KernelDebugger) -> Iterable[int]:
        assert isinstance(debugger, ScheduleDebugger)
        return debugger.visible


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One step of a schedule: its actor, the place it starts from, and its first position in the debugger."""

    token: str
    name: str
    where: str
    position: int


class ScheduleDebugger(BpfDebugger):
    """A debugger at the start of a schedule that it has recorded; moving forward replays it.

    A manual step that departs from the schedule leaves it: the remaining recorded steps are discarded.
    """

    def __init__(self, session: ScheduleSession, schedule: str) -> None:
        """Raises BadSchedule if the text is no schedule or does not fit the scenario."""
        tokens = decode(schedule)
        self.session = session
        outcome = session.replay(schedule)
        self.failure = "" if outcome.violation is None else str(outcome.violation).splitlines()[0]
        """First line of the violation, as ``tramp replay`` prints it; empty without one."""
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
        # The actors define the meaning of a token; their threads belong to this debugger.
        self._world_threads, world.threads = world.threads, self._record
        self.schedule: list[ScheduleStep] = []
        """The steps that could be executed."""
        self.ended = DebugStopReason.DONE
        """Stop reason of the last step."""
        self._actors = {actor.letter: actor for actor in session.actors(session.operation)}
        for actor in self._actors.values():
            if actor.thread is not None:
                self._begin(actor.thread)
        self._begun = self.position
        for token in tokens:
            self._make(token)
            if self.ended is not DebugStopReason.STEP:
                break
        self.goto(self._begun)

    @property
    def visible(self) -> Iterable[int]:
        """Addresses of the instructions at which a schedule may switch to another actor."""
        return self.session.world.visible.instructions

    # Along the schedule ---------------------------------------------------------------------------------------------

    @property
    def schedule_step(self) -> int:
        """Number of steps executed so far; a step that has started counts."""
        begins = [step.position for step in self.schedule]
        return bisect_right(begins, self.position - 1)

    @property
    def present(self) -> int | None:
        """Index of the step that makes the next move, from 0; None after the last."""
        if self.position >= self._ended_at:
            return None
        step = self.schedule_step
        return step - 1 if step and self.position < self._end_of(step - 1) else step

    def _end_of(self, step: int) -> int:
        return self.schedule[step + 1].position if step + 1 < len(self.schedule) else self._ended_at

    def next_in_schedule(self) -> DebugStop:
        """Run to the end of the present step of the schedule, or of the next one."""
        present = self.present
        if present is None or self._ended_at > self.end:
            return self.stopped(DebugStopReason.DONE, self.failure or "the schedule is over")
        stop = self.goto(self._end_of(present))
        if stop.position == self._ended_at and self.failure:
            return self.stopped(
                DebugStopReason.FAULT if self.ended is DebugStopReason.FAULT else DebugStopReason.DONE, self.failure
            )
        return stop

    def back_in_schedule(self) -> DebugStop:
        """Go back to the start of the present step of the schedule, or of the one before."""
        step = self.schedule_step
        if not step:
            return self.stopped(DebugStopReason.START)
        return self.goto(self.schedule[step - 1].position)

    # Recording it ---------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        world = self.session.world
        world.visible.reset()
        world.memory.begin()

    def _make(self, token: str) -> None:
        """Execute one step of the schedule for the first time; the replay has shown that it is possible."""
        number, actor = len(self.schedule), self._actors[token[0]]
        where = self._wheres[number][1] if number < len(self._wheres) else ""
        self.schedule.append(ScheduleStep(token, actor.name, where, self.position))
        stop = self._perform(actor, token)
        self._ended_at = self.position
        self.ended = DebugStopReason.STEP if stop.reason is DebugStopReason.DONE else stop.reason

    def _perform(self, actor: Actor, token: str) -> DebugStop:
        ran = isinstance(actor.thread, TaskThread) and actor.thread.vcpu is not None
        for move in actor.moves(token):
            self._record.make(move)
        thread = actor.thread
        assert thread is not None
        self.select(thread)
        if not isinstance(thread, TaskThread):
            return self.step()
        stop = self.step() if ran and thread.vcpu is not None else self.stopped(DebugStopReason.STEP)
        return self._to_visible(thread, stop)

    def _to_visible(self, thread: TaskThread, stop: DebugStop) -> DebugStop:
        """Run on to the next visible instruction of the thread."""
        if stop.reason is not DebugStopReason.STEP or self.is_trapped(thread) or thread.vcpu is None:
            return stop
        if self.rip in self.session.world.visible.instructions:
            return stop
        stop = self._search.forward(thread, [AtVisible()], limit=None, reason=DebugStopReason.STEP)
        fine = stop.reason in (DebugStopReason.BREAKPOINT, DebugStopReason.BLOCKED, DebugStopReason.DONE)
        return self.stopped(DebugStopReason.STEP) if fine else stop

    def close(self) -> None:
        """Close the session as well."""
        if not self._is_closed:
            super().close()
            self.session.world.threads = self._world_threads
            self.session.stage.lab.kernel.rcu.automatic = False
            self.session.close()


def debugger_for_schedule(address: str | ScheduleAddress) -> ScheduleDebugger:
    """Debugger for a schedule that ``tramp explore`` printed: ``scenario/design/flavour/config/dropped/schedule``.

    Raises BadSchedule, TrampolineError or KernelError if a part of the address is unknown.
    """
    found = ScheduleAddress.parse(address) if isinstance(address, str) else address
    session = ScheduleSession(found.scenario, found.design, found.flavour, found.config, dropped=found.dropped)
    try:
        return ScheduleDebugger(session, found.schedule)
    except BaseException:
        session.close()
        raise
