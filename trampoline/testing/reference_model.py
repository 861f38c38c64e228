"""Reference model in plain Python: no machine code, no memory, no addresses but those of functions."""

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
    """Phase of a program's run: before or after the original function."""

    ENTRY = "entry"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Run of a program and what it saw; None for values that are absent or that it does not read."""

    program: int
    phase: RunPhase
    args: tuple[int | bytes, ...]
    ip: int | None
    cookie: int | None
    ret: int | None
    count: int | None = None
    """``bpf_get_func_arg_cnt``; None in designs where it is not the actual count."""
    session: int | None = None
    """Session cookie (``bpf_session_cookie``) as the program finds it."""


@dataclass(frozen=True, slots=True)
class Original:
    """Run of a function's own code; ``patched``: of its replacement."""

    function: str
    patched: bool = False


@dataclass(frozen=True, slots=True)
class Tracer:
    """Run of a function tracer's callback."""

    function: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Direct:
    """Run of a direct caller that is no trampoline."""

    function: str
    caller: int


Happening = ProgramRun | Original | Tracer | Direct
IN_PROGRAM, IN_ORIGINAL = "program", "original"
_Steps = Generator[str, None, int]
"""A call: yields IN_PROGRAM or IN_ORIGINAL when it sleeps there, and returns the call's value."""
EVERYTHING = frozenset({"ip", "cookie", "count"})


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A program in the model. ``result``: its return value, which matters for fmod_ret.

    ``calls``: function that it calls in each run, with distinct arguments. ``sleeps``: number of times it sleeps in a
    task, if it is alone on its function. ``reads``: values that it reads besides arguments. ``session``: stores its
    number in the session cookie at entry.
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
    """Context of a call: its CPU, and whether it runs in a task, which may sleep. ``seen``: events observed since it
    was woken, for choices that the model cannot predict.
    """

    cpu: int
    task: bool = False
    happened: list[Happening] = field(default_factory=list)
    seen: Sequence[Happening] = ()


@dataclass(slots=True)
class _Frame:
    """One call of a function with programs. ``timed``: runs were counted when it started."""

    timed: bool
    sessions: set[int] = field(default_factory=set)
    """Session programs that run at exit, because they ran at entry."""


@dataclass(slots=True)
class Asleep:
    """A sleeping call: in an original, which may continue on another CPU, or in a program, which may not."""

    function: str
    in_program: bool
    _course: _Course
    _steps: _Steps

    @property
    def cpu(self) -> int:
        """CPU on which it went to sleep."""
        return self._course.cpu


@dataclass(slots=True)
class _Function:
    traced: TracedFunction
    attached: list[Attached] = field(default_factory=list)
    generation: int = 0
    """Number of changes of the code that its site reaches."""
    incarnation: int = 0
    """Number of times that its last program was detached."""
    tracers: list[int] = field(default_factory=list)
    """Numbers of its tracers, newest last."""
    patched: bool = False
    direct: int | None = None
    inside: int = 0
    """Number of calls that sleep in one of its programs."""


class Reference:
    """Programs attached to functions; predicts for a call which programs run, in which order and with which values, and
    what the call returns.
    """

    def __init__(self, traits: Traits, release: KernelRelease, functions: Sequence[TracedFunction]) -> None:
        self._traits, self._release = traits, release
        self.functions = {function.name: _Function(function) for function in functions}
        self.timed = False
        """True if runs of programs are counted (``kernel.bpf_stats_enabled``)."""
        self.clock = 1000
        """Value of sched_clock() in ns: a run is counted if it is above NO_START_TIME (1) at entry and statistics are
        on at entry and at exit.
        """
        self.misses: Counter[int] = Counter()
        """Runs of each program that the recursion guard prevented."""
        self.runs: Counter[int] = Counter()
        """Counted runs of each program."""
        self._active: set[tuple[int, int]] = set()
        """Running programs, as (number, CPU)."""

    def fork(self) -> "Reference":
        """Independent copy. Sleeping calls stay with this one."""
        other = copy(self)
        other.functions = {
            name: replace(function, attached=list(function.attached), tracers=list(function.tracers))
            for name, function in self.functions.items()
        }
        other.misses, other.runs, other._active = self.misses.copy(), self.runs.copy(), set(self._active)
        return other

    # Attach and detach ---------------------------------------------------------------------------------------------

    def refusals(self, program: ModelProgram, names: Sequence[str], *, multi: bool) -> frozenset[int]:
        """Error codes of which attaching must return one; empty: it must succeed."""
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
        """Number of links that a function's programs count as."""
        return sum(_weight(attached.program) for attached in self.functions[name].attached)

    def attach(self, program: ModelProgram, names: Sequence[str], cookies: Sequence[int], *, multi: bool) -> None:
        """Records an attached link."""
        for name, cookie in zip(names, cookies, strict=True):
            self.functions[name].attached.append(Attached(program, cookie, multi))
            self.functions[name].generation += 1

    def detach(self, program: ModelProgram, names: Sequence[str]) -> None:
        """Records a detached link."""
        for name in names:
            function = self.functions[name]
            function.attached = [one for one in function.attached if one.program.number != program.number]
            function.generation += 1
            function.incarnation += not function.attached

    def trace(self, number: int, names: Sequence[str]) -> None:
        """Sets the functions of a tracer. Tracers are numbered in order of registration."""
        for name, function in self.functions.items():
            others = [other for other in function.tracers if other != number]
            function.tracers = sorted([*others, number]) if name in names else others

    def direct(self, names: Sequence[str], caller: int | None) -> None:
        """Sets the direct caller of functions that is no trampoline; None removes it."""
        for name in names:
            self.functions[name].direct = caller

    def time(self, *, on: bool) -> None:
        """Turns counting of runs on or off; designs whose images count rebuild all of them."""
        if on != self.timed and self._traits.times_by_image:
            for function in self.functions.values():
                function.generation += bool(function.attached)
        self.timed = on

    def is_used(self, name: str) -> bool:
        """True if the patch site of a function has any user."""
        function = self.functions[name]
        return bool(function.attached or function.tracers or function.patched or function.direct is not None)

    def accounts_calls(self, name: str) -> bool:
        """True if the code that calls a function's programs does call-depth accounting, on boots with it."""
        function = self.functions[name]
        return bool(function.attached) and self._traits_at(function).accounts_calls

    def sleeps_in(self, program: ModelProgram, name: str) -> bool:
        """True if a program sleeps when a task calls this function."""
        return program.sleeps > 0 and len(self.functions[name].attached) == 1

    def runs_on(self, program: ModelProgram, cpu: int) -> bool:
        """True if a program counts as running on a CPU, because a task sleeps in it. LSM programs do not count."""
        return (program.number, cpu) in self._active and not program.kind.is_lsm

    def patch(self, name: str, *, on: bool) -> None:
        """Records that a function was livepatched, or no longer is: trampolines that call the original are rebuilt."""
        self.functions[name].patched = on
        self.functions[name].generation += 1

    # Calls ---------------------------------------------------------------------------------------------------------

    def call(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], int]:
        """Events of a call of a function with these argument words, in order, and its return value."""
        course = _Course(cpu)
        return course.happened, _whole(self._call(name, tuple(words), course))

    def start(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], Asleep | int]:
        """Events of a call in a task until it sleeps or returns; then the sleeping call, or the return value."""
        course = _Course(cpu, task=True)
        return self._go_on(name, course, self._call(name, tuple(words), course))

    def wake(
        self, asleep: Asleep, cpu: int, seen: Sequence[Happening] = ()
    ) -> tuple[list[Happening], Asleep | int]:
        """Continues a sleeping call until it sleeps again or returns.

        ``seen``: the events observed. An image that several functions share skips its programs once the last function
        has left it; the model does not know which functions share an image, so it accepts both.
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
        """True if the image that a call is in may still run its programs, and did run the first of them."""
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
        """Programs of one list of the function, in the order in which they run; sessions are in two lists."""
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
    """Runs a call to its end without interleaving: each sleep ends at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return int(stop.value)


def kind_on(attach: AttachType, traced: TracedFunction) -> TrampProgType:
    """List of a function that a program of an attach type is in. Independent of the design's own code."""
    if attach.is_lsm:
        return TrampProgType.MODIFY_RETURN if traced.model.ret_size else TrampProgType.FEXIT
    return _KINDS[attach]


def _kind(attached: Attached, function: _Function) -> TrampProgType:
    return kind_on(attached.program.kind, function.traced)


def _weight(program: ModelProgram) -> int:
    return 2 if program.kind is AttachType.TRACE_FSESSION else 1
