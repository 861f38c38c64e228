"""BPF invariants, which hold in every schedule of a scenario."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from emu.kernel.counter_balance import unbalanced
from emu.kernel.structs import PERCPU, PREEMPT_ENABLED, task_struct
from emu.kernel.text.text_poke import CALL, JMP
from emu.machine.address_map import ADDRESS_MASK
from emu.schedule.actor import Actor
from emu.schedule.simulation import World
from emu.schedule.task_actor import GuestActor
from emu.schedule.violation import Violation
from emu.threads.thread import GuestCall
from trampoline.bpf.uapi import AttachType
from trampoline.tools.explore.scenario import Deed, Operation, Plan
from trampoline.tools.explore.testbed import ARGUMENT, Stage


class CallsSeeWhatTheyMay:
    """Checks calls: a program runs once if it was attached during the whole call, never if it was detached during the
    whole call, and at most once if it was attached or detached meanwhile. The original function or its replacement runs
    once. Arguments, cookies and return value are correct.
    """

    def __init__(self, stage: Stage, plan: Plan, operations: Mapping[str, Operation]) -> None:
        self._stage, self._attached, self._cookies = stage, plan.attached, plan.cookies
        self._deeds = [deed for operation in operations.values() for deed in operation]
        self._checked: dict[str, int] = {}

    def begin(self, world: World) -> None:
        """Nothing to prepare."""

    def after_step(self, world: World, actor: Actor) -> None:
        if not isinstance(actor, GuestActor):
            return
        done = self._checked.get(actor.letter, 0)
        if done < len(actor.calls) and actor.calls[done].ended >= 0:
            self._checked[actor.letter] = done + 1
            self._check(actor, actor.calls[done])

    def at_rest(self, world: World) -> None:
        """Nothing to check: calls are checked as they return."""

    def _check(self, actor: GuestActor, call: GuestCall) -> None:
        notes = self._stage.read_notes(call.args[1], call.value or 0)
        who = f"{call.name}, called by {actor.name}"
        if notes.value != ARGUMENT + 1:
            raise Violation("wrong return value", f"{who}, gave {notes.value}, not {ARGUMENT + 1}")
        if notes.original + notes.replacement != 1:
            times = notes.original + notes.replacement
            raise Violation("original not called once", f"{who}: the original or its replacement ran {times} times")
        if notes.replacement not in self._replaced(call):
            now = "its replacement" if notes.replacement else "the original"
            raise Violation("livepatch passed over", f"{who}: {now} ran")
        for number, runs in enumerate(notes.programs):
            may = self._may(number, call)
            if runs not in may:
                name = self._stage.programs[number].name
                wanted = " or ".join(str(times) for times in sorted(may))
                raise Violation("program run wrongly", f"{who}: {name} ran {runs} times, not {wanted}")
            if runs and notes.seen[number] & 0xFFFFFFFF != ARGUMENT:
                raise Violation("wrong argument", f"{who}: program {number} saw {notes.seen[number]:#x}")
            if runs and notes.cookies[number] not in self._may_find(number, call):
                found = notes.cookies[number]
                raise Violation("wrong cookie", f"{who}: program {number} found {found:#x}, never its cookie there")

    def _replaced(self, call: GuestCall) -> set[int]:
        """Allowed numbers of runs of the replacement in a call."""
        states = {0}
        for deed in self._deeds:
            if call.name not in deed.functions or deed.livepatched is None or not 0 <= deed.begun <= call.ended:
                continue
            if 0 <= deed.ended < call.begun:
                states = {int(deed.livepatched)} if deed.error is None else states
            else:
                states = states | {int(deed.livepatched)}
        return states

    def _may(self, number: int, call: GuestCall) -> set[int]:
        """Allowed numbers of runs of a program in a call."""
        begun = [deed for deed in self._deeds if call.name in deed.functions and 0 <= deed.begun <= call.ended]
        over = [deed for deed in begun if 0 <= deed.ended < call.begun]
        state = int(number in self._attached.get(call.name, frozenset()))
        for deed in over:
            if deed.program == number and deed.error is None:
                state = int(deed.attached)
        states = {state}
        skips = self._stage.programs[number].attach_type is AttachType.TRACE_FEXIT_MULTI
        skips |= self._stage.lab.release.trampoline.skip_nops
        for deed in begun:
            if deed in over:
                continue
            if deed.program == number:
                states.add(int(deed.attached))
            elif skips:
                # bpf_tramp_image_put(), step 1: a task in an old image skips the programs that follow.
                states.add(0)
        return states

    def _may_find(self, number: int, call: GuestCall) -> set[int]:
        """Cookies that a program may find in a call."""
        found = {self._cookies.get((number, call.name), 0)}
        for deed in self._deeds:
            attaches = deed.program == number and deed.attached and call.name in deed.functions
            if attaches and 0 <= deed.begun <= call.ended:
                cookie = deed.cookies.get(call.name, 0)
                found = {cookie} if 0 <= deed.ended < call.begun and deed.error is None else {*found, cookie}
        return found


class EnterAndExitBalance:
    """Checks that counters balance. At rest: no CPU or task is in a read-side section, has migration disabled or a run
    context set; no program counts itself as running; only its first holder has a percpu_ref; and no program has used
    time, since the clock stands still. After each call: no CPU has counted more exits than entries of a program,
    since a task does not leave a CPU between the two.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ended: dict[str, int] = {}

    def begin(self, world: World) -> None:
        self._ended.clear()

    def after_step(self, world: World, actor: Actor) -> None:
        # At rest programs, and with them their counters, may be freed.
        if isinstance(actor, GuestActor) and (ended := actor.ended) != self._ended.get(actor.letter, 0):
            self._ended[actor.letter] = ended
            percpu = world.kernel.percpu
            for prog in self._stage.programs:
                if percpu.name(prog.active) == f"active of {prog.name}":
                    active = percpu.values(prog.active, 4)
                    if any(count >> 31 for count in active):
                        raise Violation("unbalanced", f"{prog.name} ended more often than it began: {active}")

    def at_rest(self, world: World) -> None:
        kernel = world.kernel
        machine = kernel.machine
        for cpu, area in enumerate(kernel.percpu_areas):
            count = machine.read_u32(area + _PREEMPT_COUNT)
            if count != PREEMPT_ENABLED:
                raise Violation("unbalanced", f"preempt_count of cpu {cpu} is {count:#x}")
        for what in unbalanced(kernel):
            raise Violation("unbalanced", what)
        for actor in world.actors:
            if not isinstance(actor, GuestActor):
                continue
            for field, (offset, size) in _TASK_FIELDS.items():
                value = int.from_bytes(machine.read(actor.task.address + offset, size), "little")
                if value:
                    raise Violation("unbalanced", f"{field} of {actor.name} is {value:#x}")
        programs = self._stage.lab.programs
        for prog in self._stage.programs:
            if prog.address in programs.loaded:
                active = kernel.percpu.values(prog.active, 4)
                if any(active):
                    raise Violation("unbalanced", f"{prog.name} counts as running: {active}")
                if time := programs.time(prog):
                    raise Violation("wrong statistics", f"{prog.name} took {time:#x} ns, while no time passed")


_PREEMPT_COUNT = PERCPU.offset("preempt_count")
_TASK_FIELDS = {
    field: (task_struct.offset(field), size)
    for field, size in (("bpf_ctx", 8), ("migration_disabled", 2), ("trc_reader_nesting", 4))
}


@dataclass(frozen=True, slots=True)
class AtRest:
    """State after all operations: their results, memory by name, and the targets of the sites."""

    answers: tuple[tuple[str, int], ...]
    memory: frozenset[tuple[str, int]]
    sites: tuple[tuple[str, str], ...]
    locks: tuple[str, ...] = ()

    def difference(self, other: "AtRest") -> str:
        """Difference from another state, in words."""
        more = [f"{count} x {name}" for name, count in sorted(self.memory - other.memory)]
        less = [f"{count} x {name}" for name, count in sorted(other.memory - self.memory)]
        sites = [f"{name}: {what}" for name, what in self.sites if (name, what) not in other.sites]
        parts = [
            f"there: {', '.join(more)}" if more else "",
            f"in order: {', '.join(less)}" if less else "",
            f"sites: {', '.join(sites)}" if sites else "",
        ]
        return "; ".join(part for part in parts if part)


def at_rest(stage: Stage, operations: Mapping[str, Operation]) -> AtRest:
    """The present state."""
    kernel = stage.lab.kernel
    held = (kernel.slab.objects, kernel.vmalloc.objects, kernel.percpu.objects, kernel.execmem.images)
    memory = _counted(tuple(name for objects in held for name in objects.values()))
    sites = []
    records = sorted(kernel.ftrace.records)
    for site, code in zip(records, kernel.machine.read_each(records, 5), strict=True):
        if code[0] in (CALL, JMP):
            target = site + 5 + int.from_bytes(code[1:], "little", signed=True) & ADDRESS_MASK
            sites.append((stage.lab.kernel.kallsyms.function_name(site) or "", _name(_reached(stage, target))))
    answers = tuple(
        (deed.name, deed.error.errno if deed.error is not None else 0)
        for _, operation in sorted(operations.items())
        for deed in operation
    )
    return AtRest(answers, memory, tuple(sorted(sites)))


def _reached(stage: Stage, target: int) -> str:
    return stage.lab.kernel.kallsyms.function_name(target) or f"{target:#x}"


@lru_cache(maxsize=1 << 10)
def _counted(names: tuple[str, ...]) -> frozenset[tuple[str, int]]:
    """Counts allocations by name. Cached: most schedules end with the same memory."""
    return frozenset(Counter(map(_name, names)).items())


@lru_cache(maxsize=1 << 16)
def _name(name: str) -> str:
    """A name without addresses and numbers: the size of a table depends on when readers allow its resize."""
    return " ".join(part for part in name.split() if not part.startswith("0x") and not part.isdigit())


class EndsAsSomeOrder:
    """Checks that the final state is that of a sequential order of the operations with the same results."""

    def __init__(
        self, stage: Stage, operations: Mapping[str, Operation], orders: Callable[[], Sequence[AtRest]]
    ) -> None:
        self._stage, self._operations, self._orders = stage, operations, orders

    def begin(self, world: World) -> None:
        """Nothing to prepare."""

    def after_step(self, world: World, actor: Actor) -> None:
        """Nothing to check: the order is checked at rest."""

    def at_rest(self, world: World) -> None:
        found = at_rest(self._stage, self._operations)
        orders = self._orders()
        if any(found.memory == order.memory and found.sites == order.sites for order in orders):
            return
        nearest = next((order for order in orders if order.answers == found.answers), orders[0])
        raise Violation("no sequential order", found.difference(nearest))


class NothingIsLeft:
    """Leak check: after all detaches, memory, sites, direct callers and ftrace users equal the start."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._at_start: tuple[AtRest, list[int], tuple[str, ...]] | None = None

    def begin(self, world: World) -> None:
        self._at_start = self._state()

    def after_step(self, world: World, actor: Actor) -> None:
        """Nothing to check: leaks are checked at rest."""

    def at_rest(self, world: World) -> None:
        before, after = self._at_start, self._state()
        assert before is not None
        if before != after:
            difference = after[0].difference(before[0]).replace("in order: ", "at the start: ")
            raise Violation("something is left", difference or f"{after[1:]}, not {before[1:]}")

    def _state(self) -> tuple[AtRest, list[int], tuple[str, ...]]:
        ftrace = self._stage.lab.kernel.ftrace
        return at_rest(self._stage, {}), sorted(ftrace.direct_functions), tuple(ops.name for ops in ftrace.ops)


def refused(deeds: Sequence[Deed], allowed: frozenset[int]) -> str | None:
    """First operation that failed with an unexpected errno, in words; None if there is none."""
    for deed in deeds:
        if deed.error is not None and deed.error.errno not in allowed:
            return f"{deed.name}: {deed.error}"
    return None
