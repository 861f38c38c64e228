"""Building blocks of scenarios: callers, and the parts of operations."""

from collections.abc import Sequence

from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.process_context import Lock, PointKind
from emu.kernel.rcu import RcuFlavour
from emu.machine.task import TaskState
from trampoline.bpf.prog import BpfProg
from trampoline.lab.links.tracing_multi import TracingMultiLink
from trampoline.tools.explore.scenario import Deed, PlannedCall, PlannedTask
from trampoline.tools.explore.testbed import Stage

_FIRST_TASK = "task on cpu 0"


def callers(*functions: str, cpus: int = 2, both: bool = False) -> list[PlannedTask]:
    """A task on each CPU, which calls the functions in order. ``both``: tasks may migrate between the CPUs."""
    every = tuple(range(cpus))
    return [
        PlannedTask(f"task on cpu {cpu}", (cpu, *(other for other in every if other != cpu)) if both else (cpu,),
                    tuple(PlannedCall(function) for function in functions))
        for cpu in every
    ]  # fmt: skip


def cookie_series(*counts: int) -> list[Sequence[int]]:
    """Series of cookies with these lengths; all cookies differ in each of their 16-bit parts."""
    numbers = iter(range(1, sum(counts) + 1))
    return [[0x0001_0001_0001_0001 * next(numbers) for _ in range(count)] for count in counts]


def by_program(functions: Sequence[str], *series: Sequence[int]) -> dict[tuple[int, str], int]:
    """Cookies of programs 0, 1, ... on the functions, from one series for each program."""
    return {
        (number, name): cookie
        for number, cookies in enumerate(series)
        for name, cookie in zip(functions, cookies, strict=True)
    }


class Attachment:
    """A link that an operation attaches, and may detach again."""

    def __init__(self, stage: Stage, prog: BpfProg, *functions: str, cookies: Sequence[int] | None = None) -> None:
        self._stage, self._prog, self._functions, self._cookies = stage, prog, functions, cookies
        self._link: TracingMultiLink | None = None

    def attach(self) -> None:
        """Attach."""
        self._link = self._stage.attach(self._prog, *self._functions, cookies=self._cookies)

    def detach(self) -> None:
        """Detach the link; does nothing if attach failed."""
        if self._link is not None:
            self._link.detach()

    def deed(self, *, attached: bool) -> Deed:
        """The attach, or the detach, as part of an operation."""
        number = self._stage.programs.index(self._prog)
        verb = "attach" if attached else "detach"
        do = self.attach if attached else self.detach
        cookies = dict(zip(self._functions, self._cookies or (), strict=False))
        return Deed(f"{verb} {self._prog.name}", do, number, self._functions, attached, cookies)


def detach(stage: Stage, link: TracingMultiLink, prog: BpfProg, *, unload: bool = True) -> list[Deed]:
    """Detach a link that was attached at the start, and unload the program."""
    number = stage.programs.index(prog)
    deeds = [Deed(f"detach {prog.name}", link.detach, number, link.functions, attached=False)]
    if unload:
        deeds.append(Deed(f"unload {prog.name}", lambda: stage.lab.unload(prog)))
    return deeds


def others_wait(stage: Stage) -> Deed:
    """Start grace periods of all kinds, so that operations find grace periods in flight that do not wait for later
    readers.
    """
    rcu = stage.lab.kernel.rcu

    def ask() -> None:
        for flavour in (RcuFlavour.RCU, RcuFlavour.RCU_TASKS, RcuFlavour.RCU_TASKS_TRACE):
            rcu.call(flavour, lambda: None)

    return Deed("others' callbacks", ask)


class Until(Lock):
    """A lock that is held until the first task is in one of the given states."""

    def __init__(self, stage: Stage, *states: TaskState) -> None:
        super().__init__(stage.lab.kernel.process, f"until a task is {' or '.join(states)}")
        self._stage, self._states = stage, states

    @property
    def held(self) -> bool:
        """True while the lock is held."""
        tasks = (task for task in self._stage.lab.kernel.machine.tasks if task.name == _FIRST_TASK)
        return any(task.state not in self._states for task in tasks)

    def deed(self) -> Deed:
        """The wait, as part of an operation."""
        process = self._stage.lab.kernel.process
        return Deed("wait", lambda: process.point(PointKind.LOCK, self.name, self))


def tracer_of(stage: Stage, *functions: str) -> FtraceOps:
    """A function tracer of the functions, not registered."""
    sites = [stage.lab.kernel.function(name).site for name in functions]
    return FtraceOps(
        "tracer", lambda ip, parent, ops, regs: None, FtraceOpsFlag(0), filter={site for site in sites if site}
    )


class Livepatch:
    """A livepatch that is enabled, unless that fails, and disabled."""

    def __init__(self, stage: Stage, function: str) -> None:
        self._patch, self._functions = stage.livepatch(function), (function,)

    def deed(self, *, on: bool) -> Deed:
        """Enable or disable the livepatch, as part of an operation."""
        if on:
            return Deed("livepatch", self._patch.enable, functions=self._functions, livepatched=True)
        return Deed("no livepatch", self._disable, functions=self._functions, livepatched=False)

    def _disable(self) -> None:
        if self._patch.enabled:
            self._patch.disable()
