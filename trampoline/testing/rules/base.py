"""Common part of all steps of the state machine: the kernel, its model, and their comparison."""

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
"""Functions of one large link, with which tables of functions grow."""
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
    """Counts of sequences and of steps in them."""

    examples: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of sequences: a design, its traits, and the kernels to run it on."""

    design: DesignChoice
    traits: Traits
    releases: tuple[KernelRelease, ...]
    kernels: Kernels
    tally: SequenceTally

    @property
    def metadata(self) -> tuple[str | None, ...]:
        """Metadata back ends of the design; None is its default."""
        return (None, *(design_info(self.design).metadata or ())[1:])


@dataclass(eq=False, slots=True)
class LoadedProgram:
    """A program in the kernel and in the model. ``held``: the machine has a reference, besides those of its links."""

    program: ModelProgram
    prog: BpfProg = field(repr=False)
    multi: bool
    held: bool = True


@dataclass(eq=False, slots=True)
class Linked:
    """A link, with its program and functions in the model."""

    loaded: LoadedProgram
    names: tuple[str, ...]
    link: Link = field(repr=False)

    @property
    def program(self) -> ModelProgram:
        """Its program in the model."""
        return self.loaded.program


Sleeper = tuple[Task, Asleep]
Failure = tuple[PointKind, int]
"""A kind of point, and the number of the one that fails, from 1."""

Step = TypeVar("Step", bound=Callable[..., Any])


def look(step: Step) -> Step:
    """Wraps a check; if it raises, the machine is not ``intact`` and teardown checks nothing more."""

    @wraps(step)
    def run(machine: "LabSteps", **drawn: Any) -> Any:
        machine.intact = False
        result = step(machine, **drawn)
        machine.intact = True
        return result

    return cast(Step, run)


def step(step: Step) -> Step:
    """Wraps a rule as ``look`` and counts it."""
    looked = look(step)

    @wraps(step)
    def run(machine: "LabSteps", **drawn: Any) -> Any:
        machine.SUBJECT.tally.steps += 1
        return looked(machine, **drawn)

    return cast(Step, run)


class LabSteps(RuleBasedStateMachine):
    """A kernel, its reference model, and the invariants between steps."""

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
        """Boots a kernel of any release and boot with functions of any prototype, one that calls another, and one that
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
        # Most defects need several users of one function.
        focus = data.draw(st.sampled_from(self.names), "focus")
        self.likely = [*self.names, *[focus] * (len(self.names) // 2)]
        self.at_boot = self.holdings()
        self.lab.kernel.advance_clock(clock)
        self.reference.clock = clock
        if timed:
            self.lab.stats(enabled=True)
            self.reference.time(on=True)

    def holdings(self) -> Holdings:
        """Holdings of the kernel now, without the object that the design keeps."""
        return Holdings.of(self.lab, self.traits.keeps)

    # Draws ----------------------------------------------------------------------------------------------------------

    def draw_function(self, data: st.DataObject) -> str:
        """Draws a function."""
        return data.draw(st.sampled_from(self.likely), "function")

    def draw_functions(self, data: st.DataObject, *, multi: bool) -> tuple[str, ...]:
        """Draws the functions of a link."""
        if not multi:
            return (self.draw_function(data),)
        return tuple(data.draw(st.lists(st.sampled_from(self.likely), min_size=1, max_size=4), "functions"))

    def draw_failure(self, data: st.DataObject) -> Failure | None:
        """Draws the point at which memory or patching fails; None: nowhere."""
        if not data.draw(st.sampled_from((False, False, False, True)), "fails"):
            return None
        return self.draw_point(data)

    def draw_point(self, data: st.DataObject) -> Failure:
        """Draws a point that fails."""
        return self._draw_kind_of_point(data, "at"), data.draw(st.integers(1, 16), "the one")

    def _draw_kind_of_point(self, data: st.DataObject, label: str) -> PointKind:
        # A released image whose programs can't be patched out runs them again, and the kernel warns: not while a call
        # sleeps in one.
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
        """Draws a new program; ``kind`` None: of any kind that a multi link, or a plain one, takes."""
        self._programs += 1
        able = kinds(self.traits, self.release, multi=multi, sleepable=sleepable, last=self._last_kind)
        kind = self._last_kind = kind or data.draw(able, "kind")
        modifies = kind is AttachType.MODIFY_RETURN or kind.is_lsm
        result = data.draw(results(), "returns") if modifies else 0
        # Read sections of sleepable programs nest in the task: they call others more often. LSM programs have no
        # recursion guard, so they call none.
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
        """Draws a cookie for each function; all different if the program can tell functions apart by nothing else."""
        if "ip" in program.reads:
            return [data.draw(cookies(), "cookie") for _ in names]
        self._own_cookies += len(names)
        return [self._own_cookies - n << 16 | program.number for n in range(len(names))]

    def load(self, program: ModelProgram, *, multi: bool, sleepable: bool) -> LoadedProgram:
        """Loads a program and holds a reference to it."""
        loaded = LoadedProgram(program, self.watched.load(program, multi=multi, sleepable=sleepable), multi)
        self.loaded.append(loaded)
        return loaded

    def release_program(self, loaded: LoadedProgram) -> None:
        """Drops the machine's reference to a program; its links keep theirs."""
        self.lab.unload(loaded.prog)
        loaded.held = False
        self.forget_programs()

    def forget_programs(self) -> None:
        """Forgets programs without references."""
        used = {linked.loaded.program.number for linked in self.linked}
        self.loaded = [one for one in self.loaded if one.held or one.program.number in used]

    # Links ----------------------------------------------------------------------------------------------------------

    def attaching(
        self, loaded: LoadedProgram, names: Sequence[str], wanted: Sequence[int]
    ) -> Callable[[], Link]:
        """Callable that attaches a program to functions with these cookies."""
        return partial(self.watched.attach, loaded.program, loaded.prog, names, wanted, multi=loaded.multi)

    def attached(self, loaded: LoadedProgram, names: tuple[str, ...], wanted: Sequence[int], link: Any) -> Linked:
        """Records a new link, in the model too."""
        self.reference.attach(loaded.program, names, wanted, multi=loaded.multi)
        self.linked.append(Linked(loaded, names, link))
        return self.linked[-1]

    def come(self, data: st.DataObject, loaded: LoadedProgram, names: tuple[str, ...]) -> Linked:
        """Attaches a program with any cookies."""
        wanted = self.draw_cookies(data, loaded.program, names)
        return self.attached(loaded, names, wanted, self.attaching(loaded, names, wanted)())

    def go(self, linked: Linked) -> None:
        """Detaches a link."""
        linked.link.detach()
        self.detached(linked)

    def detached(self, linked: Linked) -> None:
        """Removes a detached link, from the model too."""
        self.reference.detach(linked.program, linked.names)
        self.linked.remove(linked)
        self.forget_programs()

    # Changes --------------------------------------------------------------------------------------------------------

    def may_change(self, names: Sequence[str]) -> bool:
        """True unless a program sleeps on one of the functions: what else runs in that call is not defined."""
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
        """Makes a change, or checks that its refusal left no trace. Returns (True, its result), or (False, whether the
        injected failure occurred).

        ``refusals``: allowed error codes; with any, no failure is injected, because patching sites back must not fail.
        ``remakes``: images may be replaced by others with the same programs.
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
            assert not refusals, f"not refused, but must be with one of {sorted(refusals)}"
            return True, result
        allowed = refusals | ({ENOMEM} if struck else frozenset())
        assert refused.errno in allowed, f"{refused}; allowed: {sorted(allowed)}"
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
        """As ``all_or_nothing``, but may retry once after an injected failure; the retry must succeed. True if the
        change was made.
        """
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
        """Tries a change with the first point of a kind failing, then the second, and so on until it succeeds; returns
        its result. ``then`` is called after each failure.
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
        """Compares calls of the functions, four at most."""
        for name in sorted(set(names))[:4]:
            self.compare_call(name, self.watched.functions[name].distinct(), cpu=0)

    def compare_call(self, name: str, args: Sequence[int], cpu: int) -> None:
        """Calls a function in the kernel and in the model, and compares."""
        accounts = self.variant.call_depth and self.reference.accounts_calls(name)
        if accounts:
            self.watched.fill_return_stack(cpu)
        happened, value = self.watched.call(name, args, cpu)
        self.same(name, happened, value, *self.reference.call(name, args, cpu))
        if accounts and any(isinstance(one, ProgramRun) for one in happened):
            assert self.watched.accounted, f"no call of the programs on {name} was accounted"

    def same(self, name: str, got: list[Happening], value: int, expected: list[Happening], wanted: int) -> None:
        """Compares events and return values."""
        assert got == expected, f"in a call of {name}: {got}, not {expected}"
        size = self.watched.functions[name].model.ret_size
        assert value == wanted & (1 << 8 * size) - 1, f"{name} returned {value:#x}, not {wanted:#x}"

    # Invariants -----------------------------------------------------------------------------------------------------

    @invariant()
    @look
    def sites_match_users(self) -> None:
        """Text is as booted at unused sites; used sites contain a call or a jump."""
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
                assert same == booted, f"{name} was changed outside its site"
            else:
                assert text == booted, f"{name} is not as it was booted"

    @invariant()
    @look
    def programs_are_counted(self) -> None:
        """Runs and misses of every program are those of the model; ``active`` counts only sleeping programs."""
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
    def counters_match_sleepers(self) -> None:
        """Migration, Tasks Trace RCU sections and references are counted only for sleeping calls."""
        if not self.booted:
            return
        for what in unbalanced(self.lab.kernel):
            raise AssertionError(what)

    @invariant()
    @look
    def memory_matches_references(self) -> None:
        """Programs and images exist exactly as long as references and grace periods require."""
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
    def images_are_read_only(self) -> None:
        """No image is writable; on a boot with a return thunk no image contains a plain ret."""
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
                assert not bare, f"{name} contains {bare} on a boot with return thunk {thunk}"

    # Teardown -------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Leak check: after all detaches, the state equals that after boot."""
        if not self.booted:
            return
        try:
            if self.intact:
                self.detach_all()
        except BaseException:
            self.intact = False
            raise
        finally:
            if not self.intact:
                self.SUBJECT.kernels.drop(self.watched)

    def detach_all(self) -> None:
        """Wakes all sleepers, detaches and unregisters all users, and compares with the state after boot."""
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
        assert not difference, f"left over after all detaches: {difference}"
        for what in written_since(self.lab.kernel, self.watched.counters):
            raise AssertionError(what)

    def wake_up(self, task: Task, asleep: Asleep, cpu: int) -> Asleep | None:
        """Wakes a call, on its own CPU if a program sleeps; returns the sleeping call, or None if it returned."""
        cpu = asleep.cpu if asleep.in_program else cpu
        happened = self.watched.wake(task, cpu)
        expected, state = self.reference.wake(asleep, cpu, happened)
        return self.returned(asleep.function, task, happened, expected, state)

    def returned(
        self, name: str, task: Task, happened: list[Happening], expected: list[Happening], state: Asleep | int
    ) -> Asleep | None:
        """Compares a task's call that has returned (None) or sleeps again (the sleeping call)."""
        if isinstance(state, int):
            assert happened == expected, f"in a call of {name}: {happened}, not {expected}"
            self.same(name, happened, self.watched.end(task), expected, state)
            return None
        assert happened == expected, f"in a call of {name} that sleeps: {happened}, not {expected}"
        return state


LOOKS = (
    LabSteps.sites_match_users.__name__,
    LabSteps.programs_are_counted.__name__,
    LabSteps.counters_match_sleepers.__name__,
    LabSteps.memory_matches_references.__name__,
    LabSteps.images_are_read_only.__name__,
)
"""Names of the invariants, which run after each step."""


def _struck(struck: list[str], what: str) -> KernelError:
    struck.append(what)
    return KernelError(ENOMEM, what)
