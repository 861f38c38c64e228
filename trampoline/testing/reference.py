"""What should be seen, in plain Python: no machine code, no addresses but those of functions, no memory.

A ``Reference`` knows which programs are on which functions, and says for a call which of them run, in which order and
with what, and what comes back.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from errno import E2BIG, EEXIST, EOPNOTSUPP

from trampoline.attach import AttachType, Kind
from trampoline.errors import ENOTSUPP
from trampoline.flavour import Flavour
from trampoline.testing.functions import Traced
from trampoline.testing.traits import AfterSleep, Order, Traits

MASK = (1 << 64) - 1


class Phase(Enum):
    """When a program ran: before the original, behind it, or it was no program."""

    ENTRY = "entry"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran, and what it saw. ``ret`` is None where there is none to see."""

    program: int
    phase: Phase
    args: tuple[int | bytes, ...]
    ip: int
    cookie: int
    ret: int | None
    count: int | None = None
    """``bpf_get_func_arg_cnt``; None in designs where it says something else."""


@dataclass(frozen=True, slots=True)
class Original:
    """A function's own code ran; ``patched``: its replacement."""

    function: str
    patched: bool = False


@dataclass(frozen=True, slots=True)
class Tracer:
    """The function tracer's callback ran."""

    function: str


Happening = Ran | Original | Tracer
_Steps = Generator[None, None, int]
"""A call; it yields where an original sleeps, and gives what comes back."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program as the model knows it. ``result``: what it returns, which matters for fmod_ret.

    ``calls``: a function that it calls each time it runs, with arguments that are all 1.
    """

    number: int
    kind: AttachType
    result: int = 0
    calls: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """A program on a function."""

    program: Program
    cookie: int
    multi: bool


@dataclass(slots=True)
class Asleep:
    """A call whose original sleeps."""

    function: str
    words: tuple[int, ...]
    exits: bool
    """Whether what called the original runs programs behind it."""
    generation: int
    incarnation: int
    after_sleep: AfterSleep


@dataclass(slots=True)
class _Function:
    traced: Traced
    attached: list[Attached] = field(default_factory=list)
    generation: int = 0
    """Counts the changes of what its site reaches."""
    incarnation: int = 0
    """Counts how often its last program went."""
    traced_by_tracer: bool = False
    patched: bool = False


class Reference:
    """Programs on functions, and what a call of one shows."""

    def __init__(self, traits: Traits, flavour: Flavour, functions: Sequence[Traced]) -> None:
        self._traits, self._flavour = traits, flavour
        self.functions = {function.name: _Function(function) for function in functions}
        self.misses: dict[int, int] = {}
        """Runs of each program that the recursion guard refused."""
        self._active: set[int] = set()

    # Coming and going -----------------------------------------------------------------------------------------------

    def refusals(self, program: Program, names: Sequence[str], *, multi: bool) -> frozenset[int]:
        """Error codes of which attaching must give one; none: it must work."""
        codes = set()
        traits = self._traits_of(multi)
        if len(set(names)) != len(names):
            codes.add(traits.function_twice)
        for name in names:
            function = self.functions[name]
            if function.traced.model.nr_regs > self._flavour.max_slots:
                codes.add(ENOTSUPP)
            if function.traced.model.nr_regs > traits.max_slots or self._is_awkward(function.traced, traits):
                codes.add(EOPNOTSUPP)
            mixed = any(attached.multi != multi for attached in function.attached)
            if mixed and not self._traits.mixes_plain_and_multi:
                codes.add(EEXIST)
            if any(attached.program.number == program.number for attached in function.attached):
                codes.add(traits.program_twice)
            if self.weight(name) + _weight(program) > self._flavour.max_links:
                codes.add(E2BIG)
        return frozenset(codes)

    def weight(self, name: str) -> int:
        """How many links a function's programs count as."""
        return sum(_weight(attached.program) for attached in self.functions[name].attached)

    def attach(self, program: Program, names: Sequence[str], cookies: Sequence[int], *, multi: bool) -> None:
        """A link has come."""
        for name, cookie in zip(names, cookies, strict=True):
            self.functions[name].attached.append(Attached(program, cookie, multi))
            self.functions[name].generation += 1

    def detach(self, program: Program, names: Sequence[str]) -> None:
        """A link has gone."""
        for name in names:
            function = self.functions[name]
            function.attached = [one for one in function.attached if one.program.number != program.number]
            function.generation += 1
            function.incarnation += not function.attached

    def trace(self, name: str, *, on: bool) -> None:
        """A function tracer has come to a function, or left it."""
        self.functions[name].traced_by_tracer = on

    def patch(self, name: str, *, on: bool) -> None:
        """A livepatch has come to a function, or left it: trampolines that call the original are made anew."""
        self.functions[name].patched = on
        self.functions[name].generation += 1

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, name: str, words: Sequence[int]) -> tuple[list[Happening], int]:
        """What happens in a call of a function with these argument words, in order, and what it returns."""
        happened: list[Happening] = []
        return happened, _whole(self._call(name, tuple(words), happened))

    def start(self, name: str, words: Sequence[int]) -> tuple[list[Happening], Asleep | int]:
        """The same up to where its original sleeps; what it returned where no original was called."""
        function, happened = self.functions[name], list[Happening]()
        steps = self._call(name, tuple(words), happened)
        try:
            next(steps)
        except StopIteration as stop:
            return happened, int(stop.value)
        return happened, Asleep(
            name,
            tuple(words),
            self._calls_original(function),
            function.generation,
            function.incarnation,
            self._traits_at(function).after_sleep,
        )

    def wake(self, asleep: Asleep) -> tuple[list[Happening], int]:
        """The rest of such a call."""
        function, happened = self.functions[asleep.function], list[Happening]()
        value = function.traced.result(asleep.words)
        if asleep.after_sleep is AfterSleep.NONE:
            same = function.generation == asleep.generation
        else:
            same = function.incarnation == asleep.incarnation
        if asleep.exits and same:
            self._run_exits(function, asleep.words, value, happened)
        return happened, value

    def _call(self, name: str, words: tuple[int, ...], happened: list[Happening]) -> _Steps:
        function = self.functions[name]
        if function.traced_by_tracer:
            happened.append(Tracer(name))
        calls_original = self._calls_original(function)
        for attached in self._listed(function, Kind.FENTRY):
            ret = 0 if _kind(attached) is Kind.FSESSION else None
            self._run(function, attached, Phase.ENTRY, words, ret, happened)
        for attached in self._listed(function, Kind.MODIFY_RETURN):
            ran = self._run(function, attached, Phase.ENTRY, words, 0, happened)
            if ran and attached.program.result:
                value = attached.program.result & MASK
                self._run_exits(function, words, value, happened)
                return value
        value = yield from self._original(function, words, happened)
        if calls_original:
            self._run_exits(function, words, value, happened)
        return value

    def _original(self, function: _Function, words: tuple[int, ...], happened: list[Happening]) -> _Steps:
        happened.append(Original(function.traced.name, function.patched))
        if function.patched:
            return function.traced.patched_result(words)
        if function.traced.calls:
            inner = yield from self._call(function.traced.calls, words[:1], happened)
            return (inner + 1) & MASK
        if function.traced.sleeps:
            yield
        return function.traced.result(words)

    def _run_exits(self, function: _Function, words: tuple[int, ...], value: int, happened: list[Happening]) -> None:
        for attached in self._listed(function, Kind.FEXIT):
            self._run(function, attached, Phase.EXIT, words, function.traced.cut(value), happened)

    def _run(
        self,
        function: _Function,
        attached: Attached,
        phase: Phase,
        words: tuple[int, ...],
        ret: int | None,
        happened: list[Happening],
    ) -> bool:
        program = attached.program
        if program.number in self._active:
            self.misses[program.number] = self.misses.get(program.number, 0) + 1
            return False
        traced = function.traced
        count = traced.model.nr_regs if self._traits_at(function).count_is_actual else None
        happened.append(
            Ran(program.number, phase, traced.arguments(words), traced.address, attached.cookie, ret, count)
        )
        if program.calls:
            self._active.add(program.number)
            callee = self.functions[program.calls].traced
            _whole(self._call(program.calls, (1,) * callee.model.nr_regs, happened))
            self._active.discard(program.number)
        return True

    def _listed(self, function: _Function, where: Kind) -> list[Attached]:
        """A list of the function, in the order in which it runs; sessions stand in two."""
        kinds = {where} | ({Kind.FSESSION} if where is not Kind.MODIFY_RETURN else set())
        found = [attached for attached in function.attached if _kind(attached) in kinds]
        return found if self._traits_at(function).order is Order.OLDEST_FIRST else found[::-1]

    def _calls_original(self, function: _Function) -> bool:
        return any(_kind(attached) is not Kind.FENTRY for attached in function.attached)

    def _traits_of(self, multi: bool) -> Traits:
        return self._traits if multi or self._traits.plain is None else self._traits.plain

    def _traits_at(self, function: _Function) -> Traits:
        return self._traits_of(any(attached.multi for attached in function.attached) or not function.attached)

    @staticmethod
    def _is_awkward(traced: Traced, traits: Traits) -> bool:
        return not traits.struct_on_stack and traced.skips_registers


_KINDS = {
    AttachType.FENTRY: Kind.FENTRY,
    AttachType.FEXIT: Kind.FEXIT,
    AttachType.MODIFY_RETURN: Kind.MODIFY_RETURN,
    AttachType.FSESSION: Kind.FSESSION,
}


def _whole(steps: _Steps) -> int:
    """A call in which nobody else comes to run: who sleeps is woken at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return int(stop.value)


def _kind(attached: Attached) -> Kind:
    return _KINDS[attached.program.kind]


def _weight(program: Program) -> int:
    return 2 if program.kind is AttachType.FSESSION else 1
