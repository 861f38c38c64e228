"""What all steps of the state machine have in common: the kernel and the model beside it, and how they are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from errno import ENOMEM
from functools import partial, wraps
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from asm import Image
from emu.kernel.counter_balance import unbalanced, written_since
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.process_context import CAN_FAIL, PointKind
from emu.machine.paging import RW
from emu.machine.task import Task
from trampoline.bpf.errors import KernelError
from trampoline.bpf.prog import BpfProg
from trampoline.bpf.uapi import AttachType
from trampoline.designs import DesignChoice, design_info
from trampoline.designs.traits import Traits
from trampoline.lab.links.link import Link
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.instrumented_lab import WatchedLab
from trampoline.testing.kernel_pool import Kernels, limited, variants
from trampoline.testing.leak_check import Holdings, text_of
from trampoline.testing.reference_model import EVERYTHING, Asleep, Happening, ModelProgram, ProgramRun, Reference
from trampoline.testing.strategies import cookies, kinds, prototypes, results
from trampoline.testing.traced_functions import Prototype

INNER, OUTER, SLEEPER = "tramplab_inner", "tramplab_outer", "tramplab_sleeper"
CROWD = tuple(f"tramplab_crowd_{number}" for number in range(1, 18))
"""Functions that one link has all of: tables of functions grow with them."""
NO_RETURN = "do_exit"
CPUS = 2
MOST_LINKS = 8
FIXED = (
    Prototype(INNER, f"u64 {INNER}(u64 a)"),
    Prototype(OUTER, f"u64 {OUTER}(u64 a)", calls=INNER),
    Prototype(SLEEPER, f"u64 {SLEEPER}(u64 a, int b)", sleeps=True),
    Prototype(NO_RETURN, f"u64 {NO_RETURN}(long code)", replaceable=False),
    *(Prototype(name, f"u64 {name}(u64 a)", replaceable=False) for name in CROWD),
)
"""Functions that every kernel has."""


@dataclass(eq=False, slots=True)
class SequenceTally:
    """What was run: sequences, the steps in them."""

    examples: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """What sequences are about."""

    design: DesignChoice
    traits: Traits
    releases: tuple[KernelRelease, ...]
    kernels: Kernels
    tally: SequenceTally

    @property
    def metadata(self) -> tuple[str | None, ...]:
        """The metadata back ends that the design has, None for its own choice."""
        return (None, *(design_info(self.design).metadata or ())[1:])


@dataclass(eq=False, slots=True)
class LoadedProgram:
    """A program in the kernel, and what the model calls it. ``held``: by us, not by its links alone."""

    program: ModelProgram
    prog: BpfProg = field(repr=False)
    multi: bool
    held: bool = True


@dataclass(eq=False, slots=True)
class Linked:
    """A link, and what the model calls it."""

    loaded: LoadedProgram
    names: tuple[str, ...]
    link: Link = field(repr=False)

    @property
    def program(self) -> ModelProgram:
        """Its program as the model knows it."""
        return self.loaded.program


Sleeper = tuple[Task, Asleep]
Failure = tuple[PointKind, int]
"""A kind of point, and which of them fails."""

Step = TypeVar("Step", bound=Callable[..., Any])


def look(step: Step) -> Step:
    """A look after which everything is as it should be, or that raises: then nothing more is asked at the end."""

    @wraps(step)
    def run(machine: "LabSteps", **drawn: Any) -> Any:
        machine.intact = False
        result = step(machine, **drawn)
        machine.intact = True
        return result

    return cast(Step, run)


def step(step: Step) -> Step:
    """A rule: it is counted, and else as ``look``."""
    looked = look(step)

    @wraps(step)
    def run(machine: "LabSteps", **drawn: Any) -> Any:
        machine.SUBJECT.tally.steps += 1
        return looked(machine, **drawn)

    return cast(Step, run)


class LabSteps(RuleBasedStateMachine):
    """A kernel, the model of what is to be seen there, and what holds between steps."""

    SUBJECT: Subject
    watched: WatchedLab
    _last_kind: AttachType | None = None

    def __init__(self) -> None:
        super().__init__()
        self.SUBJECT.tally.examples += 1
        self.traits = self.SUBJECT.traits
        self.booted = self.intact = False
        self.sleepers: list[Sleeper] = []
        self.linked: list[Linked] = []
        self.loaded: list[LoadedProgram] = []
        self._programs = self._own_cookies = self.tracers_made = 0
        self.tracers: dict[int, FtraceOps] = {}
        self.directs: dict[str, FtraceOps] = {}
        self._seen_images: dict[int, Image] = {}

    # Boot -----------------------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    @look
    def boot(self, data: st.DataObject) -> None:
        """A kernel of any release and boot with functions of any prototype, one that calls another, and one that
        sleeps.
        """
        known = {release.name: release for release in self.SUBJECT.releases if self.traits.runs_on(release.trampoline)}
        self.variant = data.draw(st.sampled_from(variants(list(known.values()))), "kernel")
        self.release = limited(known[self.variant.release], self.variant)
        able = self.SUBJECT.metadata if self.variant.any_metadata else (None,)
        metadata = data.draw(st.sampled_from(able), "metadata") if len(able) > 1 else None
        clock, timed = data.draw(st.sampled_from((0, 1, 2, 1000, 1000)), "clock"), data.draw(st.booleans(), "timed")
        slots = min(self.traits.slots(self.release.trampoline) + 1, 12)
        drawn = [data.draw(prototypes(f"tramplab_f{n}", max_slots=slots), f"function {n}") for n in range(3)]
        self.watched = self.SUBJECT.kernels.take(known[self.variant.release], self.variant, metadata)
        self.booted = True
        self.watched.add(drawn)
        self.lab = self.watched.lab
        self.reference = Reference(self.traits, self.release, list(self.watched.functions.values()))
        self.watched.sleeps_in = self.reference.sleeps_in
        self.names = [name for name in self.watched.functions if name not in (NO_RETURN, *CROWD)]
        # Most of what goes wrong needs several users of one function.
        focus = data.draw(st.sampled_from(self.names), "focus")
        self.likely = [*self.names, *[focus] * (len(self.names) // 2)]
        self.at_boot = self.holdings()
        self.lab.kernel.advance_clock(clock)
        self.reference.clock = clock
        if timed:
            self.lab.stats(enabled=True)
            self.reference.time(on=True)

    def holdings(self) -> Holdings:
        """What the kernel holds now, but for what the design keeps."""
        return Holdings.of(self.lab, self.traits.keeps)

    # Draws ----------------------------------------------------------------------------------------------------------

    def draw_function(self, data: st.DataObject) -> str:
        """One of the functions."""
        return data.draw(st.sampled_from(self.likely), "function")

    def draw_functions(self, data: st.DataObject, *, multi: bool) -> tuple[str, ...]:
        """What a link is to be on."""
        if not multi:
            return (self.draw_function(data),)
        return tuple(data.draw(st.lists(st.sampled_from(self.likely), min_size=1, max_size=4), "functions"))

    def draw_failure(self, data: st.DataObject) -> Failure | None:
        """Where memory or patching is to fail, if anywhere."""
        if not data.draw(st.sampled_from((False, False, False, True)), "fails"):
            return None
        return self.draw_point(data)

    def draw_point(self, data: st.DataObject) -> Failure:
        """A point that is to fail."""
        return self._draw_kind_of_point(data, "at"), data.draw(st.integers(1, 16), "the one")

    def _draw_kind_of_point(self, data: st.DataObject, label: str) -> PointKind:
        # A released image that can't be patched to jump over its programs goes on to run them, for which kernels warn:
        # not while somebody sleeps behind it.
        able = CAN_FAIL - {PointKind.PATCH} if self.sleepers else CAN_FAIL
        return data.draw(st.sampled_from(sorted(able)), label)

    def draw_program(
        self,
        data: st.DataObject,
        *,
        sleepable: bool = False,
        multi: bool = True,
        kind: AttachType | None = None,
    ) -> ModelProgram:
        """A new program, of any kind where none is given that it may have by a multi link, or by a plain one."""
        self._programs += 1
        able = kinds(self.traits, self.release, multi=multi, sleepable=sleepable, last=self._last_kind)
        kind = self._last_kind = kind or data.draw(able, "kind")
        modifies = kind is AttachType.MODIFY_RETURN or kind.is_lsm
        result = data.draw(results(), "returns") if modifies else 0
        # Sleepable programs count their sections in the task: often one within another's. Nothing would keep an LSM
        # program from calling itself.
        callees = ("", INNER, OUTER) if sleepable else ("", "", "", INNER, OUTER)
        calls = "" if kind.is_lsm else data.draw(st.sampled_from(callees), "calls")
        session = kind is AttachType.TRACE_FSESSION and data.draw(st.sampled_from((True, True, False)), "keeps a word")
        sleeps = data.draw(st.sampled_from((0, 0, 1, 2)), "sleeps") if sleepable else 0
        reads = EVERYTHING
        if not (sleeps or kind is AttachType.TRACE_FSESSION):
            leaves = data.draw(st.sampled_from(("", "", "ip", "cookie", "count", "ip count")), "does not read")
            reads -= frozenset(leaves.split())
        return ModelProgram(self._programs, kind, result, calls, sleeps, reads, session)

    def draw_cookies(self, data: st.DataObject, program: ModelProgram, names: Sequence[str]) -> list[int]:
        """A cookie for each function; where the program has nothing else to tell functions by, they differ."""
        if "ip" in program.reads:
            return [data.draw(cookies(), "cookie") for _ in names]
        self._own_cookies += len(names)
        return [self._own_cookies - n << 16 | program.number for n in range(len(names))]

    def load(self, program: ModelProgram, *, multi: bool, sleepable: bool) -> LoadedProgram:
        """Load a program, which we hold."""
        loaded = LoadedProgram(program, self.watched.load(program, multi=multi, sleepable=sleepable), multi)
        self.loaded.append(loaded)
        return loaded

    def let_go(self, loaded: LoadedProgram) -> None:
        """Leave a program to its links."""
        self.lab.unload(loaded.prog)
        loaded.held = False
        self.forget_programs()

    def forget_programs(self) -> None:
        """Programs that nobody holds are gone."""
        used = {linked.loaded.program.number for linked in self.linked}
        self.loaded = [one for one in self.loaded if one.held or one.program.number in used]

    # Links ----------------------------------------------------------------------------------------------------------

    def attaching(
        self, loaded: LoadedProgram, names: Sequence[str], wanted: Sequence[int]
    ) -> Callable[[], Link]:
        """What attaches a program to functions, with these cookies."""
        return partial(self.watched.attach, loaded.program, loaded.prog, names, wanted, multi=loaded.multi)

    def attached(self, loaded: LoadedProgram, names: tuple[str, ...], wanted: Sequence[int], link: Any) -> Linked:
        """A link that was made: the model has it too."""
        self.reference.attach(loaded.program, names, wanted, multi=loaded.multi)
        self.linked.append(Linked(loaded, names, link))
        return self.linked[-1]

    def come(self, data: st.DataObject, loaded: LoadedProgram, names: tuple[str, ...]) -> Linked:
        """Attach a program with cookies of any kind."""
        wanted = self.draw_cookies(data, loaded.program, names)
        return self.attached(loaded, names, wanted, self.attaching(loaded, names, wanted)())

    def go(self, linked: Linked) -> None:
        """Detach a link."""
        linked.link.detach()
        self.detached(linked)

    def detached(self, linked: Linked) -> None:
        """A link that has gone: the model has it no more."""
        self.reference.detach(linked.program, linked.names)
        self.linked.remove(linked)
        self.forget_programs()

    # Changes --------------------------------------------------------------------------------------------------------

    def may_change(self, names: Sequence[str]) -> bool:
        """Not while a program sleeps on one of them: what else runs in that call is nowhere said."""
        return not any(self.reference.functions[name].inside for name in names)

    def all_or_nothing(
        self,
        change: Callable[[], Any],
        refusals: frozenset[int] = frozenset(),
        failure: Failure | None = None,
        *,
        names: Sequence[str] = (),
        remakes: bool = False,
    ) -> tuple[bool, Any]:
        """Whether the change was made, and what it gave; where it was refused, everything is as it was, and instead of
        what it gave it says whether the failure struck. ``remakes``: images may be others, of the same programs.
        Where it is refused there is no failure: sites may have to be patched back, which must not fail.
        """
        before = self.holdings()
        struck: list[str] = []
        refused, result = None, None
        try:
            if failure is None or refusals:
                result = change()
            else:
                with self.lab.kernel.process.fail_at(*failure, lambda what: _struck(struck, what)):
                    result = change()
        except KernelError as error:
            refused = error
        if refused is None:
            assert not refusals, f"it must be refused with one of {sorted(refusals)}"
            return True, result
        allowed = refusals | ({ENOMEM} if struck else frozenset())
        assert refused.errno in allowed, f"{refused}; of {sorted(allowed)} it would be right"
        after = self.holdings()
        if remakes:
            before, after = before.without_places(), after.without_places()
        difference = before.difference(after)
        assert not difference, f"left over after {refused}: {difference}"
        self.compare_calls(names)
        return False, bool(struck)

    def or_again(
        self,
        data: st.DataObject,
        change: Callable[[], Any],
        refusals: frozenset[int] = frozenset(),
        failure: Failure | None = None,
        *,
        names: Sequence[str] = (),
        remakes: bool = False,
    ) -> bool:
        """As ``all_or_nothing``; what failed is tried once more at once, perhaps, and works then."""
        made, struck = self.all_or_nothing(change, refusals, failure, names=names, remakes=remakes)
        if made or not struck or refusals or data.draw(st.booleans(), "gives up"):
            return made
        change()
        return True

    def fails_everywhere(
        self,
        data: st.DataObject,
        change: Callable[[], Any],
        names: Sequence[str],
        most: int,
        then: Callable[[], None] = lambda: None,
        *,
        remakes: bool = False,
    ) -> Any:
        """What a change gives that is tried with the first point of a kind failing, the second, and so on until it
        works. ``then``: what is done after each failure.
        """
        kind = self._draw_kind_of_point(data, "what fails")
        for nth in range(1, most):
            called = names if nth == 1 else ()
            made, result = self.all_or_nothing(change, failure=(kind, nth), names=called, remakes=remakes)
            if made:
                return result
            then()
        return change()

    # Calls ----------------------------------------------------------------------------------------------------------

    def compare_calls(self, names: Sequence[str]) -> None:
        """Call functions, four at most."""
        for name in sorted(set(names))[:4]:
            self.compare_call(name, self.watched.functions[name].distinct(), cpu=0)

    def compare_call(self, name: str, args: Sequence[int], cpu: int) -> None:
        """Call a function, in the kernel and in the model."""
        accounts = self.variant.call_depth and self.reference.accounts_calls(name)
        if accounts:
            self.watched.fill_return_stack(cpu)
        happened, value = self.watched.call(name, args, cpu)
        self.same(name, happened, value, *self.reference.call(name, args, cpu))
        if accounts and any(isinstance(one, ProgramRun) for one in happened):
            assert self.watched.accounted, f"no call of the programs on {name} was accounted"

    def same(self, name: str, got: list[Happening], value: int, expected: list[Happening], wanted: int) -> None:
        """Compare what happened and what came back."""
        assert got == expected, f"in a call of {name}: {got}, not {expected}"
        size = self.watched.functions[name].model.ret_size
        assert value == wanted & (1 << 8 * size) - 1, f"{name} returned {value:#x}, not {wanted:#x}"

    # What holds at any time -----------------------------------------------------------------------------------------

    @invariant()
    @look
    def sites_are_patched_where_somebody_is(self) -> None:
        """Text is as booted where nobody is, and a site that somebody is at calls or jumps."""
        if not self.booted:
            return
        now = text_of(self.lab)
        for name in self.reference.functions:
            text, booted = now[name], self.at_boot.text[name]
            if self.reference.is_used(name):
                placed = self.lab.kernel.function(name)
                assert placed.site is not None
                offset = placed.site - placed.address
                assert text[offset] in b"\xe8\xe9", f"the site of {name} is not patched"
                same = text[:offset] + booted[offset : offset + 5] + text[offset + 5 :]
                assert same == booted, f"{name} was changed beside its site"
            else:
                assert text == booted, f"{name} is not as it was booted"

    @invariant()
    @look
    def programs_are_counted(self) -> None:
        """Runs and misses of every program are those of the model; a program that nobody is in is not running."""
        if not self.booted:
            return
        counted = self.watched.counted()
        for loaded in self.loaded:
            number = loaded.program.number
            expected = self.reference.misses[number], self.reference.runs[number]
            found = counted.get(number)
            assert found == expected, f"misses and runs of program {number} are {found}, not {expected}"
            active = self.lab.kernel.percpu.values(loaded.prog.active, 4)
            running = [int(self.reference.runs_on(loaded.program, cpu)) for cpu in range(CPUS)]
            assert active == running, f"program {number} counts as running {active}, not {running}"

    @invariant()
    @look
    def counts_are_those_of_who_sleeps(self) -> None:
        """Pinned tasks, sections of RCU-tasks-trace and references are counted for nobody but who sleeps in them."""
        if not self.booted:
            return
        for what in unbalanced(self.lab.kernel):
            raise AssertionError(what)

    @invariant()
    @look
    def memory_is_held_for_what_is_there(self) -> None:
        """Programs and images exist as long as somebody needs them, and no longer than grace periods say."""
        if not self.booted:
            return
        self.lab.kernel.rcu.settle()
        if self.sleepers or not self.lab.kernel.rcu.automatic:
            return
        wanted = {f"watched{loaded.program.number}" for loaded in self.loaded}
        assert {prog.name for prog in self.lab.programs.loaded.values()} == wanted
        if self.traits.image_per_function:
            traced = sum(bool(function.attached) for function in self.reference.functions.values())
            images = [str(name) for name in self.lab.kernel.execmem.images.values() if "bpf_trampoline_" in str(name)]
            assert len(images) == traced, f"{len(images)} images for {traced} functions: {images}"

    @invariant()
    @look
    def images_are_code_that_nobody_writes(self) -> None:
        """No image is writable; on a boot with a return thunk none has a return of its own."""
        if not self.booted:
            return
        machine = self.lab.kernel.machine
        thunk = self.variant.return_thunk
        for address, name in self.lab.kernel.execmem.images.items():
            image = machine.images.at(address)
            if image is None or self._seen_images.get(address) is image:
                continue
            self._seen_images[address] = image
            assert not machine.page_entry(address) & RW, f"{name} is writable"
            if thunk and name.startswith(("bpf_trampoline_", "tramplab_")):
                bare = [line.text for line in image.lines if line.text.startswith("ret")]
                assert not bare, f"{name} returns by {bare} although returns go through {thunk}"

    # The end --------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everybody goes: then everything is as booted."""
        if not self.booted:
            return
        try:
            if self.intact:
                self.everybody_goes()
        except BaseException:
            self.intact = False
            raise
        finally:
            if not self.intact:
                self.SUBJECT.kernels.drop(self.watched)

    def everybody_goes(self) -> None:
        """Wake who sleeps, take everything off, compare with the boot."""
        self.lab.kernel.rcu.automatic = True
        for task, asleep in self.sleepers:
            again: Asleep | None = asleep
            while again is not None:
                again = self.wake_up(task, again, 0)
        self.sleepers.clear()
        for linked in self.linked:
            linked.link.detach()
        for loaded in self.loaded:
            if loaded.held:
                self.lab.unload(loaded.prog)
        for tracer in self.tracers.values():
            self.lab.kernel.ftrace.unregister_ftrace_function(tracer)
        for name, function in self.reference.functions.items():
            if function.patched:
                self.watched.unpatch(name)
            if function.direct is not None and self.directs[name].enabled:
                self.watched.undirect(self.directs[name], function.direct)
        if self.reference.timed:
            self.lab.stats(enabled=False)
        difference = self.at_boot.difference(self.holdings())
        assert not difference, f"at rest something is left over: {difference}"
        for what in written_since(self.lab.kernel, self.watched.counters):
            raise AssertionError(what)

    def wake_up(self, task: Task, asleep: Asleep, cpu: int) -> Asleep | None:
        """Let a call go on, that of a program where it is; gives it where it sleeps again."""
        cpu = asleep.cpu if asleep.in_program else cpu
        happened = self.watched.wake(task, cpu)
        expected, state = self.reference.wake(asleep, cpu, happened)
        return self.returned(asleep.function, task, happened, expected, state)

    def returned(
        self, name: str, task: Task, happened: list[Happening], expected: list[Happening], state: Asleep | int
    ) -> Asleep | None:
        """Compare a task's call that has returned, or sleeps."""
        if isinstance(state, int):
            assert happened == expected, f"in a call of {name}: {happened}, not {expected}"
            self.same(name, happened, self.watched.end(task), expected, state)
            return None
        assert happened == expected, f"in a call of {name} that sleeps: {happened}, not {expected}"
        return state


LOOKS = (
    LabSteps.sites_are_patched_where_somebody_is.__name__,
    LabSteps.programs_are_counted.__name__,
    LabSteps.counts_are_those_of_who_sleeps.__name__,
    LabSteps.memory_is_held_for_what_is_there.__name__,
    LabSteps.images_are_code_that_nobody_writes.__name__,
)
"""What is looked at after each step."""


def _struck(struck: list[str], what: str) -> KernelError:
    struck.append(what)
    return KernelError(ENOMEM, what)
