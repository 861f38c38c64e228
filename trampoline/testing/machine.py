"""The state machine: links, calls and other users of the same functions come and go, and what happens is compared with
the reference model after every step.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from errno import ENOMEM, EWOULDBLOCK
from functools import wraps
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from emu.kernel.functions import AssemblyFunctions, Function
from emu.process import CAN_FAIL
from emu.task import Task
from trampoline.attach import AttachType
from trampoline.designs import Factory
from trampoline.errors import KernelError, TrampolineError
from trampoline.flavour import FLAVOURS, Flavour
from trampoline.link import Link, MultiLink
from trampoline.prog import BpfProg
from trampoline.testing.functions import Prototype
from trampoline.testing.holdings import Holdings
from trampoline.testing.kernels import Kernels
from trampoline.testing.reference import Asleep, Happening, Program, Reference
from trampoline.testing.strategies import cookies, kinds, prototypes, words
from trampoline.testing.traits import TRAITS, Traits
from trampoline.testing.watched import WatchedLab

INNER, OUTER, SLEEPER, MODULE_FUNCTION = "tramplab_inner", "tramplab_outer", "tramplab_sleeper", "tramplab_of_module"
MODULE = "tramplab_module"
CPUS = 2
MOST_LINKS = 8


FIXED = (
    Prototype(INNER, f"u64 {INNER}(u64 a)"),
    Prototype(OUTER, f"u64 {OUTER}(u64 a)", calls=INNER),
    Prototype(SLEEPER, f"u64 {SLEEPER}(u64 a, int b)", sleeps=True),
)
"""Functions that every kernel has."""


@dataclass(eq=False, slots=True)
class Tally:
    """What was run: sequences, the steps in them."""

    examples: int = 0
    steps: int = 0


@dataclass(eq=False, slots=True)
class _Linked:
    """A link and what the model calls it."""

    program: Program
    names: tuple[str, ...]
    multi: bool
    link: Link | MultiLink
    prog: BpfProg


def lab_machine(
    design: str | Factory,
    traits: Traits | None = None,
    *,
    flavours: Sequence[Flavour] = tuple(FLAVOURS.values()),
    tally: Tally | None = None,
) -> type["LabMachine"]:
    """The state machine of a design, by name or by what makes it: run it with Hypothesis's
    ``run_state_machine_as_test``, or let pytest find its ``TestCase``.

    ``traits`` says what is documented of the design; those of tramplab's own are known. Each run draws one of the
    flavours, and functions with prototypes of its own. Kernels stay booted between runs (``SUBJECT.kernels``);
    ``tally`` counts what is run.
    """
    if traits is None:
        if not isinstance(design, str) or design not in TRAITS:
            raise TrampolineError(f"no traits are known of {design!r}: say what is documented of it")
        traits = TRAITS[design]
    kernels = Kernels(design, FIXED, vcpus=CPUS, counts=traits.count_is_actual)
    chosen = Subject(design, traits, tuple(flavours), kernels, tally or Tally())

    class Chosen(LabMachine):
        SUBJECT = chosen

    Chosen.__name__ = Chosen.__qualname__ = f"LabMachine[{design if isinstance(design, str) else 'own'}]"
    return Chosen


@dataclass(frozen=True, slots=True)
class Subject:
    """What sequences are about."""

    design: str | Factory
    traits: Traits
    flavours: tuple[Flavour, ...]
    kernels: Kernels
    tally: Tally


_Step = TypeVar("_Step", bound=Callable[..., Any])


def _intact(step: _Step) -> _Step:
    """A step or a look after which everything is as it should be, or that raises: then nothing more is asked at the
    end.
    """

    @wraps(step)
    def run(machine: "LabMachine", **drawn: Any) -> Any:
        machine.intact = False
        result = step(machine, **drawn)
        machine.intact = True
        return result

    return cast(_Step, run)


def _step(step: _Step) -> _Step:
    """A rule: it is counted, and intact."""
    intact = _intact(step)

    @wraps(step)
    def run(machine: "LabMachine", **drawn: Any) -> Any:
        machine.SUBJECT.tally.steps += 1
        return intact(machine, **drawn)

    return cast(_Step, run)


class LabMachine(RuleBasedStateMachine):
    """The state machine of some design; ``lab_machine`` makes them."""

    SUBJECT: Subject
    watched: WatchedLab

    links = Bundle("links")
    asleep = Bundle("asleep")

    def __init__(self) -> None:
        super().__init__()
        self.SUBJECT.tally.examples += 1
        self.traits = self.SUBJECT.traits
        self.booted = self.intact = False
        self.sleeping = 0
        self.linked: list[_Linked] = []
        self.traced: set[str] = set()
        self.patched: set[str] = set()
        self._programs = 0

    # Boot -----------------------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    @_step
    def boot(self, data: st.DataObject) -> None:
        """A kernel with a few functions of any prototype, one that calls another, and one that sleeps."""
        known = {flavour.name: flavour for flavour in self.SUBJECT.flavours if self.traits.runs_on(flavour)}
        self.flavour = known[data.draw(st.sampled_from(sorted(known)), "flavour")]
        slots = self.traits.slots(self.flavour) + 1
        drawn = [data.draw(prototypes(f"tramplab_f{n}", max_slots=min(slots, 12)), f"function {n}") for n in range(3)]
        self.watched = self.SUBJECT.kernels.take(self.flavour)
        self.booted = True
        self.watched.add(drawn)
        self.lab = self.watched.lab
        self.names = list(self.watched.functions)
        self.reference = Reference(self.traits, self.flavour, list(self.watched.functions.values()))
        self.at_boot = Holdings.of(self.lab)

    # Links ----------------------------------------------------------------------------------------------------------

    def _draw_program(self, data: st.DataObject) -> Program:
        self._programs += 1
        kind = data.draw(kinds(self.traits, self.flavour), "kind")
        result = data.draw(st.sampled_from((0, 0, 7)), "returns") if kind is AttachType.MODIFY_RETURN else 0
        calls = data.draw(st.sampled_from(("", "", "", INNER, OUTER)), "calls")
        return Program(self._programs, kind, result, calls)

    def _draw_functions(self, data: st.DataObject, *, multi: bool) -> tuple[str, ...]:
        if not multi:
            return (data.draw(st.sampled_from(self.names), "function"),)
        return tuple(data.draw(st.lists(st.sampled_from(self.names), min_size=1, max_size=4), "functions"))

    def _draw_failure(self, data: st.DataObject) -> tuple[Any, int] | None:
        if not data.draw(st.sampled_from((False, False, False, True)), "fails"):
            return None
        return data.draw(st.sampled_from(sorted(CAN_FAIL)), "at"), data.draw(st.integers(1, 12), "the one")

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=links, data=st.data(), multi=st.booleans(), sleepable=st.booleans())
    @_step
    def attach(self, data: st.DataObject, multi: bool, sleepable: bool) -> Any:
        """A new program comes; memory or patching may fail on the way."""
        program = self._draw_program(data)
        names = self._draw_functions(data, multi=multi)
        prog = self.watched.load(program, multi=multi, sleepable=sleepable)
        made = self._attach(data, program, prog, names, multi=multi)
        self.lab.unload(prog)
        return made if made is not None else multiple()

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(target=links, data=st.data(), one=links)
    @_step
    def attach_again(self, data: st.DataObject, one: _Linked) -> Any:
        """A program that is on functions already comes to others, or to the same."""
        names = self._draw_functions(data, multi=one.multi)
        made = self._attach(data, one.program, one.prog, names, multi=one.multi)
        return made if made is not None else multiple()

    def _attach(
        self, data: st.DataObject, program: Program, prog: BpfProg, names: tuple[str, ...], *, multi: bool
    ) -> _Linked | None:
        wanted = [data.draw(cookies(), "cookie") for _ in names]
        refusals = self.reference.refusals(program, names, multi=multi)
        failure = self._draw_failure(data)
        link = self._all_or_nothing(lambda: self.watched.attach(prog, names, wanted, multi=multi), refusals, failure)
        if link is None:
            return None
        self.reference.attach(program, names, wanted, multi=multi)
        linked = _Linked(program, names, multi, link, prog)
        self.linked.append(linked)
        self._compare_calls(names)
        return linked

    @rule(data=st.data(), one=consumes(links))
    @_step
    def detach(self, data: st.DataObject, one: _Linked) -> None:
        """A link goes; where that fails, it goes at the second attempt."""
        failure = self._draw_failure(data)
        if failure is not None:
            self._all_or_nothing(one.link.detach, frozenset(), failure)
        if one.link.attached:
            one.link.detach()
        self.reference.detach(one.program, one.names)
        self.linked.remove(one)
        self._compare_calls(one.names)

    def _all_or_nothing(
        self, change: Callable[[], Any], refusals: frozenset[int], failure: tuple[Any, int] | None
    ) -> Any:
        """What the change gives; None where it is refused, and then everything is as it was."""
        before = Holdings.of(self.lab)
        refused: KernelError | None = None
        result = None
        try:
            if failure is None:
                result = change()
            else:
                kind, nth = failure
                with self.lab.kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
                    result = change()
        except KernelError as error:
            refused = error
        if refused is None:
            assert not refusals, f"it must be refused with one of {sorted(refusals)}"
            return result
        allowed = refusals | ({ENOMEM} if failure else frozenset())
        assert refused.errno in allowed, f"{refused}; of {sorted(allowed)} it would be right"
        difference = before.difference(Holdings.of(self.lab))
        assert not difference, f"left over after {refused}: {difference}"
        return None

    # Calls ----------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1))
    @_step
    def call(self, data: st.DataObject, cpu: int) -> None:
        """A call from anywhere; programs may call traced functions in turn."""
        name = data.draw(st.sampled_from(self.names), "function")
        self._compare_call(name, data.draw(words(self.watched.functions[name].model), "words"), cpu)

    def _compare_calls(self, names: Sequence[str]) -> None:
        for name in sorted(set(names)):
            self._compare_call(name, range(1, self.watched.functions[name].model.nr_regs + 1), cpu=0)

    def _compare_call(self, name: str, args: Sequence[int], cpu: int) -> None:
        happened, value = self.watched.call(name, args, cpu)
        self._same(name, happened, value, *self.reference.call(name, args))

    def _same(self, name: str, got: list[Happening], value: int, expected: list[Happening], wanted: int) -> None:
        assert got == expected, f"in a call of {name}: {got}, not {expected}"
        size = self.watched.functions[name].model.ret_size or 8
        assert value == wanted & (1 << 8 * size) - 1, f"{name} returned {value:#x}, not {wanted:#x}"

    @precondition(lambda self: self.sleeping < 3)
    @rule(target=asleep, data=st.data(), cpu=st.integers(0, CPUS - 1))
    @_step
    def call_that_sleeps(self, data: st.DataObject, cpu: int) -> Any:
        """A call sleeps in the original function."""
        args = data.draw(words(self.watched.functions[SLEEPER].model), "words")
        happened, task = self.watched.start(SLEEPER, args, cpu)
        expected, state = self.reference.start(SLEEPER, args)
        if isinstance(state, int):
            self._same(SLEEPER, happened, self.watched.end(task), expected, state)
            return multiple()
        assert happened == expected
        self.sleeping += 1
        return task, state

    @rule(sleeper=consumes(asleep), cpu=st.integers(0, CPUS - 1))
    @_step
    def wake(self, sleeper: tuple[Task, Asleep], cpu: int) -> None:
        """It goes on, perhaps on another CPU."""
        task, state = sleeper
        self.sleeping -= 1
        happened, value = self.watched.wake(task, cpu)
        self._same(SLEEPER, happened, value, *self.reference.wake(state))

    # Others ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data())
    @_step
    def tracer(self, data: st.DataObject) -> None:
        """A function tracer comes, or goes."""
        name = data.draw(st.sampled_from(self.names), "function")
        on = name not in self.traced
        (self.watched.trace if on else self.watched.untrace)(name)
        self.traced ^= {name}
        self.reference.trace(name, on=on)

    @precondition(lambda self: self.traits.shares_sites)
    @rule(data=st.data())
    @_step
    def livepatch(self, data: st.DataObject) -> None:
        """A function is replaced, or is itself again."""
        name = data.draw(st.sampled_from(self.names), "function")
        on = name not in self.patched
        (self.watched.patch if on else self.watched.unpatch)(name)
        self.patched ^= {name}
        self.reference.patch(name, on=on)

    @rule(on=st.booleans())
    @_step
    def grace_periods(self, on: bool) -> None:
        """Grace periods end as soon as they can, or stay."""
        self.lab.kernel.rcu.automatic = on
        self.lab.kernel.rcu.settle()

    @rule()
    @_step
    def some_grace_periods(self) -> None:
        """Those end that can."""
        self.lab.kernel.rcu.poll()

    @precondition(lambda self: MODULE not in self.lab.kernel.modules)
    @rule(multi=st.booleans())
    @_step
    def traced_module(self, multi: bool) -> None:
        """A module comes, has a function traced, can't go before the link, and goes."""
        body = Function(MODULE_FUNCTION, "lea rax, [rdi + 5]\nret", f"u64 {MODULE_FUNCTION}(u64 a)")
        self.lab.kernel.load_module(MODULE, AssemblyFunctions((body,), module=MODULE))
        kind = AttachType.FENTRY_MULTI if multi else AttachType.FENTRY
        ran: list[int] = []
        prog = self.lab.prog(kind, lambda context: ran.append(context.slots[0]))
        name = f"{MODULE}:{MODULE_FUNCTION}"
        link = self.lab.attach_multi(prog, [name]) if multi else self.lab.attach(prog, name)
        self.lab.unload(prog)
        assert self.lab.call(MODULE_FUNCTION, 4).value == 9
        assert ran == [4]
        refused = 0
        try:
            self.lab.kernel.modules.unload(MODULE)
        except KernelError as error:
            refused = error.errno
        assert refused == EWOULDBLOCK, "a module with a traced function was unloaded"
        link.detach()
        self.lab.kernel.modules.unload(MODULE)

    @precondition(lambda self: len(self.linked) < MOST_LINKS)
    @rule(data=st.data(), multi=st.booleans(), every=st.integers(1, 5))
    @_step
    def observed_attach(self, data: st.DataObject, multi: bool, every: int) -> None:
        """A link comes and goes while another CPU calls its functions: each call shows it or doesn't, and is right."""
        program = self._draw_program(data)
        names = self._draw_functions(data, multi=multi)
        if self.reference.refusals(program, names, multi=multi):
            return
        wanted = [data.draw(cookies(), "cookie") for _ in names]
        prog = self.watched.load(program, multi=multi, sleepable=False)
        coming = self.lab.kernel.process.start(lambda: self.watched.attach(prog, names, wanted, multi=multi))
        cookie_of = dict(zip(names, wanted, strict=True))

        def come(reference: Reference, some: Sequence[str]) -> None:
            reference.attach(program, some, [cookie_of[name] for name in some], multi=multi)

        self._observe(coming, names, every, come)
        going = self.lab.kernel.process.start(coming.result.detach)
        self._observe(going, names, every, lambda reference, some: reference.detach(program, some))
        self.lab.unload(prog)

    def _observe(
        self, task: Any, names: Sequence[str], every: int, change: Callable[[Reference, Sequence[str]], None]
    ) -> None:
        """Step a task that changes functions, and call one on another CPU at every so many of its points.

        Each function changes at once, but not all of them do at the same time.
        """
        possible = [deepcopy(self.reference) for _ in range(1 << len(names))]
        for number, reference in enumerate(possible):
            change(reference, [name for bit, name in enumerate(names) if number >> bit & 1])
        steps = 0
        while not task.done:
            task.step()
            steps += 1
            if steps % every == 0:
                name = names[steps // every % len(names)]
                model = self.watched.functions[name].model
                args = (steps,) * model.nr_regs
                happened, value = self.watched.call(name, args, cpu=1)
                cut = (1 << 8 * model.ret_size) - 1
                allowed = [(events, result & cut) for events, result in (one.call(name, args) for one in possible)]
                assert (happened, value) in allowed, f"{name}: {happened} and {value:#x}, not one of {allowed}"
        change(self.reference, names)

    # What holds at any time -----------------------------------------------------------------------------------------

    @invariant()
    @_intact
    def sites_are_patched_where_somebody_is(self) -> None:
        """Text is as booted where nobody is, and a site that somebody is at calls or jumps."""
        if not self.booted:
            return
        machine = self.lab.kernel.machine
        for name, function in self.reference.functions.items():
            placed = self.lab.kernel.function(name)
            text = machine.read(placed.address, placed.size)
            assert placed.site is not None
            used = function.attached or name in self.traced or name in self.patched
            if used:
                assert machine.read(placed.site, 1) in (b"\xe8", b"\xe9"), f"the site of {name} is not patched"
                offset = placed.site - placed.address
                same = text[:offset] + self.at_boot.text[name][offset : offset + 5] + text[offset + 5 :]
                assert same == self.at_boot.text[name], f"{name} was changed beside its site"
            else:
                assert text == self.at_boot.text[name], f"{name} is not as it was booted"

    @invariant()
    @_intact
    def memory_is_held_for_what_is_there(self) -> None:
        """Programs and images exist as long as somebody needs them, and no longer than grace periods say."""
        if not self.booted or self.sleeping or not self.lab.kernel.rcu.automatic:
            return
        self.lab.kernel.rcu.settle()
        numbers = {linked.program.number for linked in self.linked}
        assert {prog.name for prog in self.lab.programs.loaded.values()} == {f"watched{number}" for number in numbers}
        if self.traits.image_per_function:
            traced = sum(bool(function.attached) for function in self.reference.functions.values())
            images = [str(name) for name in self.lab.kernel.execmem.images.values() if "bpf_trampoline_" in str(name)]
            assert len(images) == traced, f"{len(images)} images for {traced} functions: {images}"

    def teardown(self) -> None:
        """Everybody goes: then everything is as booted."""
        if not self.booted:
            return
        try:
            if self.intact:
                self._everybody_goes()
        except BaseException:
            self.intact = False
            raise
        finally:
            if not self.intact:
                self.SUBJECT.kernels.drop(self.watched)

    def _everybody_goes(self) -> None:
        self.lab.kernel.rcu.automatic = True
        for task in [task for task in self.lab.kernel.machine.tasks if task.name == f"calls {SLEEPER}"]:
            self.watched.wake(task, cpu=0)
        for linked in list(self.linked):
            linked.link.detach()
        for name in sorted(self.traced):
            self.watched.untrace(name)
        for name in sorted(self.patched):
            self.watched.unpatch(name)
        difference = self.at_boot.difference(Holdings.of(self.lab))
        assert not difference, f"at rest something is left over: {difference}"
