"""Session: a scenario on a design that runs any number of schedules."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import permutations, product

from emu.kernel.config import CONFIGS
from emu.kernel.errors import KernelError
from emu.kernel.structs import PERCPU, PREEMPT_ENABLED, task_struct
from emu.machine.task import Task
from emu.machine.vcpu import Vcpu
from emu.recording import Recording, record
from emu.schedule.action import GRACE_LETTER, LETTERS, ScheduleAction, decode
from emu.schedule.actor import Actor
from emu.schedule.coverage import Coverage, CoverageWatch
from emu.schedule.operation_actor import ControlActor, GraceActor
from emu.schedule.run import Choice, ScheduleOutcome, Scheduler, Taken, run_schedule
from emu.schedule.schedulers.replay import Replay
from emu.schedule.simulation import Invariant
from emu.schedule.task_actor import GuestActor
from emu.schedule.violation import Violation
from emu.threads.thread import GuestCall
from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DesignChoice
from trampoline.tools.explore.design_name import NamedDesign
from trampoline.tools.explore.invariants import (
    AtRest,
    CallsSeeWhatTheyMay,
    EndsAsSomeOrder,
    EnterAndExitBalance,
    NothingIsLeft,
    at_rest,
    refused,
)
from trampoline.tools.explore.lifecycle_coverage import LifeWatch
from trampoline.tools.explore.scenario import Operation
from trampoline.tools.explore.scenarios import SCENARIOS, Scenario, vcpus_of
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.testbed import ARGUMENT, Stage

_PREEMPT_COUNT = PERCPU.offset("preempt_count")
_MIGRATION_DISABLED = task_struct.offset("migration_disabled")


class ScheduleSession:
    """One scenario on one design. Raises KernelError if the design cannot do what the scenario needs.

    ``design``: a name as NamedDesign has it, or a factory. ``covers``: collect coverage for ``take_coverage``.
    """

    def __init__(
        self,
        scenario: str,
        design: DesignChoice,
        flavour: str = "6.12",
        config: str = "voluntary",
        *,
        dropped: Collection[str] = (),
        counting: str = "off",
        covers: bool = False,
    ) -> None:
        named = NamedDesign.of(design)
        self._design = design
        self.address = ScheduleAddress(scenario, named.text, flavour, config, "".join(sorted(dropped)))
        if scenario not in SCENARIOS:
            raise TrampolineError(f"no scenario {scenario!r}; the scenarios are {', '.join(SCENARIOS)}")
        make = SCENARIOS[scenario]
        self.stage = Stage(
            named.make, flavour, config, metadata=named.metadata, vcpus=vcpus_of(scenario), counting=counting
        )
        self._covers = covers
        self._watch: CoverageWatch | None = None
        self.covering = covers
        """True if the next schedules collect coverage."""
        try:
            self._preemptible = CONFIGS[config].preemption
            self._open(make)
        except BaseException:
            self.stage.close()
            raise

    def _open(self, make: Scenario) -> None:
        stage, dropped = self.stage, set(self.address.dropped)
        self.plan = plan = make(stage)
        self.letters: list[str] = []
        """Letters of all actors but grace periods, tasks first."""
        self.task_count = len(plan.tasks)
        letters = iter(letter for letter in LETTERS if letter != GRACE_LETTER)
        self._tasks: list[tuple[str, Task, list[GuestCall], tuple[int, ...]]] = []
        for planned in plan.tasks:
            letter = next(letters)
            self.letters.append(letter)
            if letter in dropped:
                continue
            calls = [
                GuestCall(
                    stage.lab.kernel.kallsyms.address(call.function), (ARGUMENT, stage.notes()), call.function
                )
                for call in planned.calls
            ]
            self._tasks.append((letter, stage.task(planned.name), calls, planned.cpus))
        names = list(plan.operations())
        named = list(zip(letters, names, strict=False))
        self.letters += [letter for letter, _ in named]
        self._operations = [(letter, name) for letter, name in named if letter not in dropped]
        self._orders: dict[frozenset[str], list[AtRest]] = {}
        self.world = stage.world([*plan.state])
        if self._covers:
            watch = self._watch = CoverageWatch(self.world)
            self._life = LifeWatch(self.world, lambda: watch.coverage)
        self.world.open()
        self._learn()

    # One schedule ---------------------------------------------------------------------------------------------------

    def run(
        self,
        scheduler: Scheduler,
        *,
        max_steps: int = 5000,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> ScheduleOutcome:
        """Run one schedule from the start, in a context made by ``around``; its final state stays until the next."""
        world = self.world
        world.reset()
        for vcpu in self.stage.lab.kernel.machine.vcpus:
            vcpu.reset_counts()
        operations = self._begin()
        try:
            with around():
                outcome = run_schedule(world, scheduler, max_steps=max_steps)
            if outcome.violation is None and not (outcome.pruned or outcome.cut):
                for operation in operations.values():
                    what = refused(operation, self.plan.may_refuse)
                    if what is not None:
                        outcome.violation = Violation("refused", what)
        finally:
            self.stage.lab.kernel.process.memory = None
            if self._watch is not None:
                self._watch.end()
        return outcome

    def replay(self, text: str) -> ScheduleOutcome:
        """Run the schedule with this text. Raises BadSchedule."""
        replay = Replay(decode(text))
        replay.begin()
        outcome = self.run(replay)
        if outcome.violation is None:
            replay.end(outcome)
        return outcome

    def record(self, text: str) -> Recording:
        """Run the schedule with this text and record all vCPUs; the kernel needs counters. Raises BadSchedule."""
        recordings: list[Recording] = []

        @contextmanager
        def recording() -> Iterator[None]:
            with record(self.stage.lab.kernel) as made:
                recordings.append(made)
                yield

        replay = Replay(decode(text))
        replay.begin()
        self.run(replay, around=recording)
        return recordings[0]

    def take_coverage(self) -> Coverage:
        """Coverage since the last call."""
        return Coverage() if self._watch is None else self._watch.take()

    def trace(self, outcome: ScheduleOutcome) -> list[tuple[str, int, str, str, int]]:
        """A schedule that was run, as values that can be compared with another run's."""
        return [
            (taken.action.token, taken.steps, taken.where.kind, taken.where.what, taken.where.address)
            for taken in outcome.taken
        ]

    def instructions(self) -> list[int]:
        """Instructions that each vCPU executed in the last schedule; 0 without counters."""
        counted = [vcpu.counts() for vcpu in self.stage.lab.kernel.machine.vcpus]
        return [counts.instructions if counts is not None else 0 for counts in counted]

    def close(self) -> None:
        """Free the machine."""
        self.world.reset()
        self.world.close()
        self.stage.close()

    def __enter__(self) -> "ScheduleSession":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def address_of(self, outcome: ScheduleOutcome) -> ScheduleAddress:
        """The address of a schedule."""
        return replace(self.address, schedule=outcome.text)

    def command(self, outcome: ScheduleOutcome) -> str:
        """The command that replays a schedule."""
        return f"tramp replay {self.address_of(outcome)}"

    def without(self, letter: str) -> "ScheduleSession | None":
        """The same session with one more actor left out; None if that leaves no task or no operation."""
        dropped = {*self.address.dropped, letter}
        if not any(letter not in dropped for letter in self.letters[: self.task_count]):
            return None
        if not any(letter not in dropped for letter in self.letters[self.task_count :]):
            return None
        address = self.address
        return ScheduleSession(address.scenario, self._design, address.flavour, address.config, dropped=dropped)

    def operation(self, name: str) -> None:
        """Execute a whole operation, made anew."""
        self._do(self.plan.operations()[name])

    # Actors ---------------------------------------------------------------------------------------------------------

    def actors(self, do: Callable[[str], object]) -> list[Actor]:
        """Actors for one schedule. ``do`` executes a whole operation by its name."""
        world = self.world
        actors: list[Actor] = []
        for letter, task, calls, cpus in self._tasks:
            fresh = [GuestCall(call.function, call.args, call.name) for call in calls]
            actors.append(
                GuestActor(
                    world, len(actors), letter, task, fresh, cpus=cpus,
                    preemptible=self._may_preempt if self._preemptible else None,
                    migratable=self._may_migrate if len(cpus) > 1 else None,
                )
            )  # fmt: skip
        for letter, name in self._operations:
            actors.append(ControlActor(world, len(actors), letter, name, partial(do, name)))
        actors.append(GraceActor(world, len(actors)))
        return actors

    def _begin(self) -> Mapping[str, Operation]:
        made = self.plan.operations()
        operations = {name: made[name] for _, name in self._operations}
        invariants: list[Invariant] = [
            CallsSeeWhatTheyMay(self.stage, self.plan, operations),
            EnterAndExitBalance(self.stage),
            EndsAsSomeOrder(self.stage, operations, lambda: self._orders_without(operations)),
        ]
        if self.plan.restores and len(self._operations) == len(made):
            invariants.append(NothingIsLeft(self.stage))
        if self._watch is not None and self.covering:
            # First, so that it sees a step before another invariant rejects it.
            self._life.schedule(operations)
            invariants[:0] = (self._watch, self._life)
        self.world.begin(self.actors(lambda name: self._do(operations[name])), invariants)
        return operations

    def _do(self, deeds: Operation) -> None:
        world = self.world
        for deed in deeds:
            deed.begun = world.step
            try:
                deed.do()
            except KernelError as error:
                deed.error = error
            deed.ended = world.step

    def _may_preempt(self, vcpu: Vcpu) -> bool:
        return vcpu.machine.read_u32(vcpu.gs_base + _PREEMPT_COUNT) == PREEMPT_ENABLED

    def _may_migrate(self, task: Task) -> bool:
        return self.stage.lab.kernel.machine.read_u16(task.address + _MIGRATION_DISABLED) == 0

    # Sequential orders ----------------------------------------------------------------------------------------------

    def _orders_without(self, operations: Mapping[str, Operation]) -> list[AtRest]:
        """Final states of all orders of the operations, in which those that failed do nothing."""
        skipped = frozenset(deed.name for deeds in operations.values() for deed in deeds if deed.error is not None)
        if skipped not in self._orders:
            self._orders[skipped] = self._sequential(skipped)
        return self._orders[skipped]

    def _sequential(self, skipped: Collection[str]) -> list[AtRest]:
        """Run all orders from the initial state; the state of the calling schedule is discarded."""
        found = []
        world, kernel = self.world, self.stage.lab.kernel
        orders = permutations([name for _, name in self._operations])
        # A grace period may be complete or not when it is polled: a resize is deferred while the last one drains.
        for order, early in product(orders, (True, False)):
            world.reset()
            kernel.process.memory, kernel.machine.before_store = None, None
            kernel.rcu.automatic = early
            operations = self.plan.operations()
            kept = {name: operations[name] for name in order}
            for name in order:
                for deed in kept[name]:
                    if deed.name not in skipped:
                        try:
                            deed.do()
                        except KernelError as error:
                            deed.error = error
            kernel.rcu.automatic = True
            kernel.rcu.settle()
            kernel.rcu.automatic = False
            found.append(at_rest(self.stage, kept))
        return found

    # Before the first schedule --------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Find visible instructions that only access data of their own task: run calls and operations one after the
        other, in both orders. Raises KernelError if the design rejects an operation without concurrency.
        """
        world = self.world
        world.learn = {}
        for operations_first in (False, True):
            world.reset()
            operations = self._begin()
            run_schedule(world, _InOrder(operations_first=operations_first))
            for deed in (deed for deeds in operations.values() for deed in deeds):
                if deed.error is not None and deed.error.errno not in self.plan.may_refuse:
                    raise deed.error
        world.reset()
        world.visible.forget_private(world.learn)
        world.learn = None


class _InOrder(Replay):
    """Scheduler that runs every actor to its end; tasks first, or operations first."""

    def __init__(self, *, operations_first: bool) -> None:
        super().__init__((), strict=False)
        self._operations_first = operations_first

    def choose(self, actions: Sequence[ScheduleAction], last: Taken | None, step: int) -> Choice | None:
        return Choice(actions[-1] if self._operations_first else actions[0])

