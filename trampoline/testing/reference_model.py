"""What should be seen, in plain Python: no machine code, no addresses but those of functions, no memory.

A ``Reference`` knows which programs are on which functions, and says for a call which of them run, in which order and
with what, and what comes back.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from errno import E2BIG, EEXIST, EOPNOTSUPP

from trampoline.bpf.errors import ENOTSUPP
from trampoline.bpf.uapi import AttachType
from trampoline.designs.traits import AfterSleep, Order, Traits
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.traced_functions import TracedFunction
from trampoline.tramp_links import TrampProgType

MASK = (1 << 64) - 1


class RunPhase(Enum):
    """When a program ran: before the original, behind it, or it was no program."""

    ENTRY = "entry"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A program that ran, and what it saw; None for what is not there, or what it does not read."""

    program: int
    phase: RunPhase
    args: tuple[int | bytes, ...]
    ip: int | None
    cookie: int | None
    ret: int | None
    count: int | None = None
    """``bpf_get_func_arg_cnt``; None in designs where it says something else."""
    session: int | None = None
    """What a session keeps from entry to exit (``bpf_session_cookie``), as it finds it."""


@dataclass(frozen=True, slots=True)
class Original:
    """A function's own code ran; ``patched``: its replacement."""

    function: str
    patched: bool = False


@dataclass(frozen=True, slots=True)
class Tracer:
    """A function tracer's callback ran."""

    function: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Direct:
    """A direct caller that is no trampoline ran."""

    function: str
    caller: int


Happening = ProgramRun | Original | Tracer | Direct
IN_PROGRAM, IN_ORIGINAL = "program", "original"
_Steps = Generator[str, None, int]
"""A call; it yields where somebody sleeps, and says where, and gives what comes back."""
EVERYTHING = frozenset({"ip", "cookie", "count"})


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A program as the model knows it. ``result``: what it returns, which matters for fmod_ret.

    ``calls``: a function that it calls each time it runs, with its distinct arguments. ``sleeps``: how often it sleeps
    in a task, where it is alone on its function. ``reads``: what it asks for beside arguments. ``session``: it keeps
    its number from entry to exit.
    """

    number: int
    kind: AttachType
    result: int = 0
    calls: str = ""
    sleeps: int = 0
    reads: frozenset[str] = EVERYTHING
    session: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """A program on a function."""

    program: ModelProgram
    cookie: int
    multi: bool


@dataclass(slots=True)
class _Course:
    """Who calls: the CPU that it is on, and whether it is a task, which may sleep. ``seen``: what was seen to happen
    since it was woken, for where a model can't know.
    """

    cpu: int
    task: bool = False
    happened: list[Happening] = field(default_factory=list)
    seen: Sequence[Happening] = ()


@dataclass(slots=True)
class _Frame:
    """One call of a function with programs. ``timed``: whether runs were counted when it began."""

    timed: bool
    sessions: set[int] = field(default_factory=set)
    """Programs that run behind the original, since they ran before it."""


@dataclass(slots=True)
class Asleep:
    """A call in which somebody sleeps: an original, which may go on elsewhere, or a program, which can't."""

    function: str
    in_program: bool
    _course: _Course
    _steps: _Steps

    @property
    def cpu(self) -> int:
        """The CPU on which it went to sleep."""
        return self._course.cpu


@dataclass(slots=True)
class _Function:
    traced: TracedFunction
    attached: list[Attached] = field(default_factory=list)
    generation: int = 0
    """Counts the changes of what its site reaches."""
    incarnation: int = 0
    """Counts how often its last program went."""
    tracers: list[int] = field(default_factory=list)
    """Numbers of the tracers, the newest last."""
    patched: bool = False
    direct: int | None = None
    inside: int = 0
    """Calls that sleep in a program of it."""


class Reference:
    """Programs on functions, and what a call of one shows."""

    def __init__(self, traits: Traits, release: KernelRelease, functions: Sequence[TracedFunction]) -> None:
        self._traits, self._release = traits, release
        self.functions = {function.name: _Function(function) for function in functions}
        self.timed = False
        """Whether runs of programs are counted (``kernel.bpf_stats_enabled``)."""
        self.clock = 1000
        """What sched_clock() answers: a run is counted if that is more than 1 when the program is entered, which is
        NO_START_TIME, and statistics are on then and when it is left.
        """
        self.misses: Counter[int] = Counter()
        """Runs of each program that the recursion guard refused."""
        self.runs: Counter[int] = Counter()
        """Runs of each program that were counted."""
        self._active: set[tuple[int, int]] = set()
        """Programs that run, and on which CPU."""

    def fork(self) -> "Reference":
        """One that goes its own way. Calls that sleep stay with this one."""
        other = copy(self)
        other.functions = {
            name: replace(function, attached=list(function.attached), tracers=list(function.tracers))
            for name, function in self.functions.items()
        }
        other.misses, other.runs, other._active = self.misses.copy(), self.runs.copy(), set(self._active)
        return other

    # Coming and going -----------------------------------------------------------------------------------------------

    def refusals(self, program: ModelProgram, names: Sequence[str], *, multi: bool) -> frozenset[int]:
        """Error codes of which attaching must give one; none: it must work."""
        codes = set()
        traits = self._traits_of(multi)
        if len(set(names)) != len(names):
            codes.add(traits.function_twice)
        for name in names:
            function = self.functions[name]
            if function.traced.model.nr_regs > self._release.trampoline.max_slots:
                codes.add(ENOTSUPP)
            if function.traced.model.nr_regs > traits.max_slots or self._is_awkward(function.traced, traits):
                codes.add(EOPNOTSUPP)
            mixed = any(attached.multi != multi for attached in function.attached)
            if mixed and not self._traits.mixes_plain_and_multi:
                codes.add(EEXIST)
            if any(attached.program.number == program.number for attached in function.attached):
                codes.add(traits.program_twice)
            if self.weight(name) + _weight(program) > self._release.trampoline.max_links:
                codes.add(E2BIG)
            if function.direct is not None and not function.attached:
                codes.add(traits.site_taken)
        return frozenset(codes)

    def weight(self, name: str) -> int:
        """How many links a function's programs count as."""
        return sum(_weight(attached.program) for attached in self.functions[name].attached)

    def attach(self, program: ModelProgram, names: Sequence[str], cookies: Sequence[int], *, multi: bool) -> None:
        """A link has come."""
        for name, cookie in zip(names, cookies, strict=True):
            self.functions[name].attached.append(Attached(program, cookie, multi))
            self.functions[name].generation += 1

    def detach(self, program: ModelProgram, names: Sequence[str]) -> None:
        """A link has gone."""
        for name in names:
            function = self.functions[name]
            function.attached = [one for one in function.attached if one.program.number != program.number]
            function.generation += 1
            function.incarnation += not function.attached

    def trace(self, number: int, names: Sequence[str]) -> None:
        """A function tracer is on these functions now. Numbers are in the order in which tracers came."""
        for name, function in self.functions.items():
            others = [other for other in function.tracers if other != number]
            function.tracers = sorted([*others, number]) if name in names else others

    def direct(self, names: Sequence[str], caller: int | None) -> None:
        """Somebody else's direct caller has come to functions, is another one now, or has left them."""
        for name in names:
            self.functions[name].direct = caller

    def time(self, *, on: bool) -> None:
        """Runs are counted from now on, or no more; where images do that, all are made anew."""
        if on != self.timed and self._traits.times_by_image:
            for function in self.functions.values():
                function.generation += bool(function.attached)
        self.timed = on

    def is_used(self, name: str) -> bool:
        """Whether anybody is at the site of a function."""
        function = self.functions[name]
        return bool(function.attached or function.tracers or function.patched or function.direct is not None)

    def accounts_calls(self, name: str) -> bool:
        """Whether what runs the programs of a function accounts calls, on boots that want that."""
        function = self.functions[name]
        return bool(function.attached) and self._traits_at(function).accounts_calls

    def sleeps_in(self, program: ModelProgram, name: str) -> bool:
        """Whether a program goes to sleep when a task calls this function."""
        return program.sleeps > 0 and len(self.functions[name].attached) == 1

    def runs_on(self, program: ModelProgram, cpu: int) -> bool:
        """Whether a program counts as running on a CPU, since a task sleeps in it. LSM programs do not count."""
        return (program.number, cpu) in self._active and not program.kind.is_lsm

    def patch(self, name: str, *, on: bool) -> None:
        """A livepatch has come to a function, or left it: trampolines that call the original are made anew."""
        self.functions[name].patched = on
        self.functions[name].generation += 1

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], int]:
        """What happens in a call of a function with these argument words, in order, and what it returns."""
        course = _Course(cpu)
        return course.happened, _whole(self._call(name, tuple(words), course))

    def start(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], Asleep | int]:
        """The same in a task, up to where somebody sleeps; what it returned where nobody did."""
        course = _Course(cpu, task=True)
        return self._go_on(name, course, self._call(name, tuple(words), course))

    def wake(
        self, asleep: Asleep, cpu: int, seen: Sequence[Happening] = ()
    ) -> tuple[list[Happening], Asleep | int]:
        """The rest of such a call, or up to where somebody sleeps again.

        ``seen``: what was seen to happen. An image that several functions share jumps over its programs when the last
        of them leaves it: whether others have it is not the model's business, so either is right.
        """
        asleep._course.cpu, asleep._course.seen = cpu, seen
        asleep._course.happened = []
        return self._go_on(asleep.function, asleep._course, asleep._steps)

    @staticmethod
    def _go_on(name: str, course: _Course, steps: _Steps) -> tuple[list[Happening], Asleep | int]:
        try:
            where = next(steps)
        except StopIteration as stop:
            return course.happened, int(stop.value)
        return course.happened, Asleep(name, where == IN_PROGRAM, course, steps)

    def _call(self, name: str, words: tuple[int, ...], course: _Course) -> _Steps:
        function = self.functions[name]
        course.happened += [Tracer(name, number) for number in reversed(function.tracers)]
        if function.direct is not None:
            course.happened.append(Direct(name, function.direct))
        calls_original, after_sleep = self._calls_original(function), self._traits_at(function).after_sleep
        patched, came = function.patched, (function.generation, function.incarnation)
        there, exits = list(function.attached), list(self._listed(function, TrampProgType.FEXIT))
        frame = _Frame(self.timed)
        for attached in self._listed(function, TrampProgType.FENTRY):
            ret = 0 if _kind(attached, function) is TrampProgType.FSESSION else None
            if (yield from self._run(function, attached, RunPhase.ENTRY, words, ret, course, frame)):
                frame.sessions.add(attached.program.number)
        for attached in self._listed(function, TrampProgType.MODIFY_RETURN):
            ran = yield from self._run(function, attached, RunPhase.ENTRY, words, 0, course, frame)
            if ran and attached.program.result:
                value = attached.program.result & MASK
                listed = self._listed(function, TrampProgType.FEXIT)
                yield from self._run_exits(listed, function, words, value, course, frame)
                return value
        value = yield from self._original(function, words, patched, course)
        now = (function.generation, function.incarnation)
        same = now == came if after_sleep is AfterSleep.NONE else now[1] == came[1]
        if not same and after_sleep is AfterSleep.NONE and self._is_kept(function, there, exits, course):
            yield from self._run_exits(exits, function, words, value, course, frame)
        elif calls_original and same:
            listed = self._listed(function, TrampProgType.FEXIT)
            yield from self._run_exits(listed, function, words, value, course, frame)
        return value

    def _is_kept(
        self, function: _Function, there: Sequence[Attached], exits: Sequence[Attached], course: _Course
    ) -> bool:
        """Whether the image that a call is in may still run its programs, and was seen to run the first of them."""
        if self._traits_at(function).image_per_function or any(one not in function.attached for one in there):
            return False
        first = course.seen[0] if course.seen else None
        return (
            isinstance(first, ProgramRun)
            and first.phase is RunPhase.EXIT
            and bool(exits)
            and first.program == exits[0].program.number
        )

    def _original(self, function: _Function, words: tuple[int, ...], patched: bool, course: _Course) -> _Steps:
        course.happened.append(Original(function.traced.name, patched))
        if patched:
            return function.traced.patched_result(words)
        if function.traced.calls:
            inner = yield from self._call(function.traced.calls, words[:1], course)
            return (inner + 1) & MASK
        if function.traced.sleeps and course.task:
            yield IN_ORIGINAL
        return function.traced.result(words)

    def _run_exits(
        self,
        listed: Iterable[Attached],
        function: _Function,
        words: tuple[int, ...],
        value: int,
        course: _Course,
        frame: _Frame,
    ) -> Generator[str, None, None]:
        for attached in listed:
            ret = function.traced.cut(value)
            yield from self._run(function, attached, RunPhase.EXIT, words, ret, course, frame)

    def _run(
        self,
        function: _Function,
        attached: Attached,
        phase: RunPhase,
        words: tuple[int, ...],
        ret: int | None,
        course: _Course,
        frame: _Frame,
    ) -> Generator[str, None, bool]:
        program = attached.program
        if (program.number, course.cpu) in self._active and not program.kind.is_lsm:
            self.misses[program.number] += 1
            return False
        traced, reads = function.traced, program.reads
        counts = "count" in reads and self._traits_at(function).count_is_actual
        kept = program.number if phase is RunPhase.EXIT and program.number in frame.sessions else 0
        course.happened.append(
            ProgramRun(
                program.number,
                phase,
                traced.arguments(words),
                traced.address if "ip" in reads else None,
                attached.cookie if "cookie" in reads else None,
                ret if "count" in reads else None,
                traced.model.nr_regs if counts else None,
                kept if program.session else None,
            )
        )
        by_image, began = self._traits_at(function).times_by_image, self.timed and self.clock > 1
        running = program.number, course.cpu
        if program.calls:
            self._active.add(running)
            callee = self.functions[program.calls].traced
            nested = _Course(course.cpu, happened=course.happened)
            _whole(self._call(program.calls, callee.distinct(), nested))
            self._active.discard(running)
        if course.task and self.sleeps_in(program, traced.name):
            self._active.add(running)
            function.inside += 1
            for _ in range(program.sleeps):
                yield IN_PROGRAM
            function.inside -= 1
            self._active.discard(running)
        # A cgroup's shim keeps no statistics.
        by_cgroup = program.kind is AttachType.LSM_CGROUP
        self.runs[program.number] += not by_cgroup and (frame.timed if by_image else began and self.timed)
        return True

    def _listed(self, function: _Function, where: TrampProgType) -> list[Attached]:
        """A list of the function, in the order in which it runs; sessions stand in two."""
        kinds = {where} | ({TrampProgType.FSESSION} if where is not TrampProgType.MODIFY_RETURN else set())
        found = [attached for attached in function.attached if _kind(attached, function) in kinds]
        return found if self._traits_at(function).order is Order.OLDEST_FIRST else found[::-1]

    def _calls_original(self, function: _Function) -> bool:
        return any(_kind(attached, function) is not TrampProgType.FENTRY for attached in function.attached)

    def _traits_of(self, multi: bool) -> Traits:
        return self._traits if multi or self._traits.plain is None else self._traits.plain

    def _traits_at(self, function: _Function) -> Traits:
        return self._traits_of(any(attached.multi for attached in function.attached) or not function.attached)

    @staticmethod
    def _is_awkward(traced: TracedFunction, traits: Traits) -> bool:
        return not traits.struct_on_stack and traced.skips_registers


_KINDS = {
    AttachType.TRACE_FENTRY: TrampProgType.FENTRY,
    AttachType.TRACE_FEXIT: TrampProgType.FEXIT,
    AttachType.MODIFY_RETURN: TrampProgType.MODIFY_RETURN,
    AttachType.TRACE_FSESSION: TrampProgType.FSESSION,
}


def _whole(steps: _Steps) -> int:
    """A call in which nobody else comes to run: who sleeps is woken at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return int(stop.value)


def kind_on(attach: AttachType, traced: TracedFunction) -> TrampProgType:
    """The list that a program of an attach type is in on a function. The model's own: not what the design asks."""
    if attach.is_lsm:
        return TrampProgType.MODIFY_RETURN if traced.model.ret_size else TrampProgType.FEXIT
    return _KINDS[attach]


def _kind(attached: Attached, function: _Function) -> TrampProgType:
    return kind_on(attached.program.kind, function.traced)


def _weight(program: ModelProgram) -> int:
    return 2 if program.kind is AttachType.TRACE_FSESSION else 1
