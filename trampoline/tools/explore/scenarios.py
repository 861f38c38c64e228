"""Scenarios by name: calls on all CPUs and concurrent operations, in every design that supports the operation."""

from collections.abc import Callable
from errno import EAGAIN, EBUSY, ENOENT, ENOMEM, EWOULDBLOCK
from functools import partial

from emu.kernel.errors import KernelError
from emu.kernel.process_context import PointKind
from emu.kernel.structs import PERCPU
from emu.kernel.text.entry import SITE_SIZE
from emu.kernel.text.functions import AssemblyFunctions
from emu.machine.task import TaskState
from emu.schedule.violation import Violation
from trampoline.designs import DESIGNS
from trampoline.tools.explore.design_name import NamedDesign
from trampoline.tools.explore.scenario import Deed, Operation, Plan, PlannedCall, PlannedTask
from trampoline.tools.explore.scenario_steps import (
    Attachment,
    Livepatch,
    Until,
    by_program,
    callers,
    cookie_series,
    detach,
    others_wait,
    tracer_of,
)
from trampoline.tools.explore.testbed import MODULE, MODULE_FUNCTIONS, Stage

_RESIZED = 15
"""Functions whose attach grows the hash beyond its first 16 buckets, and whose detach shrinks it."""

_MOST_POINTS = 60
"""Largest number of points of one kind in an operation."""


def attach_during_call(stage: Stage) -> Plan:
    """Attach a program to a function that both CPUs are calling."""
    prog = stage.program("fexit")
    return Plan(callers("explored"), lambda: {"attach": [Attachment(stage, prog, "explored").deed(attached=True)]})


def detach_during_call(stage: Stage) -> Plan:
    """Detach and unload the last programs of a function that both CPUs are calling."""
    entry, exit_ = stage.program("fentry"), stage.program("fexit")
    links = [stage.attach(entry, "explored"), stage.attach(exit_, "explored")]
    return Plan(
        callers("explored"),
        lambda: {
            "detach": [others_wait(stage), *detach(stage, links[0], entry), *detach(stage, links[1], exit_)]
        },
        attached={"explored": frozenset({0, 1})},
        state=[links],
    )


def detach_while_sleeping(stage: Stage) -> Plan:
    """Detach programs while tasks sleep in their function; the tasks may continue on another CPU."""
    entry, exit_ = stage.program("fentry"), stage.program("fexit")
    links = [stage.attach(entry, "explored_sleeps"), stage.attach(exit_, "explored_sleeps")]
    return Plan(
        callers("explored_sleeps", both=True),
        lambda: {
            "detach": [others_wait(stage), *detach(stage, links[1], exit_), *detach(stage, links[0], entry)]
        },
        attached={"explored_sleeps": frozenset({0, 1})},
        state=[links],
    )


def modify_during_call(stage: Stage) -> Plan:
    """Attach and detach a second program on a function that both CPUs are calling; the first one stays."""
    kept, added = stage.program("fentry"), stage.program("fexit")
    link = stage.attach(kept, "explored")

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, added, "explored")
        return {"modify": [attachment.deed(attached=True), attachment.deed(attached=False)]}

    return Plan(callers("explored"), operations, attached={"explored": frozenset({0})}, state=[link])


def resize_during_lookup(stage: Stage) -> Plan:
    """Shrink and grow the metadata table while CPUs and a sleeping task look functions up in it: some stay attached,
    others are detached and attached again with another cookie.
    """
    kept, added = stage.program("fexit"), stage.program("fentry")
    traced = ("explored", "explored_sleeps")
    more = [f"explored_{number}" for number in range(1, _RESIZED + 1)]
    first, second, third = cookie_series(len(traced), len(more), len(more))
    links = [stage.attach(kept, *traced, cookies=first), stage.attach(added, *more, cookies=second)]

    def operations() -> dict[str, Operation]:
        again = Attachment(stage, added, *more, cookies=third)
        return {
            "resize": [
                *detach(stage, links[1], added, unload=False), again.deed(attached=True), again.deed(attached=False),
                *detach(stage, links[0], kept),
            ]
        }  # fmt: skip

    tasks = [
        PlannedTask("task on cpu 0", (0,), tuple(map(PlannedCall, ("explored", more[0], "explored", more[1])))),
        PlannedTask("task on cpu 1", (1,), tuple(map(PlannedCall, ("explored_sleeps", "explored", more[0])))),
    ]
    cookies = by_program(traced, first) | {(1, name): cookie for name, cookie in zip(more, second, strict=True)}
    attached = {**dict.fromkeys(traced, frozenset({0})), **dict.fromkeys(more, frozenset({1}))}
    return Plan(tasks, operations, attached=attached, cookies=cookies, state=[links])


def cookies_change(stage: Stage) -> Plan:
    """Detach a program from two functions with another program, and attach a third one, each with its own cookies,
    while both CPUs call the functions.
    """
    kept, removed, added = (stage.program("fentry") for _ in range(3))
    functions = ("explored", "explored_1")
    first, second, third = cookie_series(*[len(functions)] * 3)
    links = [stage.attach(kept, *functions, cookies=first), stage.attach(removed, *functions, cookies=second)]

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, added, *functions, cookies=third)
        return {"change": [*detach(stage, links[1], removed), attachment.deed(attached=True)]}

    return Plan(
        callers(*functions),
        operations,
        attached=dict.fromkeys(functions, frozenset({0, 1})),
        cookies=by_program(functions, first, second),
        state=[links],
    )


def two_attaches(stage: Stage) -> Plan:
    """Attach two programs concurrently while both CPUs call the function."""
    first, second = stage.program("fentry"), stage.program("fexit")
    return Plan(
        callers("explored"),
        lambda: {
            "attach P0": [Attachment(stage, first, "explored").deed(attached=True)],
            "attach P1": [Attachment(stage, second, "explored").deed(attached=True)],
        },
    )


def batch_patching(stage: Stage) -> Plan:
    """Attach a program to several functions, and detach it, while all CPUs call them."""
    prog = stage.program("fexit")
    functions = ("explored", "explored_1", "explored_2")

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, prog, *functions)
        return {"batch": [attachment.deed(attached=True), attachment.deed(attached=False)]}

    return Plan(callers("explored", "explored_2"), operations)


def livepatch_meets_fexit(stage: Stage) -> Plan:
    """Livepatch a function and attach a program to it concurrently."""
    prog = stage.program("fexit")
    patch = stage.livepatch("explored")
    return Plan(
        callers("explored"),
        lambda: {
            "livepatch": [Deed("livepatch", patch.enable, functions=("explored",), livepatched=True)],
            "attach": [Attachment(stage, prog, "explored").deed(attached=True)],
        },
        may_refuse=frozenset({EBUSY, EAGAIN}),
    )


def module_unload(stage: Stage) -> Plan:
    """Unload a module while a program is attached to one of its functions and to one of the kernel's."""
    kernel = stage.lab.kernel
    kernel.load_module(MODULE, AssemblyFunctions(MODULE_FUNCTIONS, module=MODULE))
    prog = stage.program("fexit")
    inside = f"{MODULE}:{MODULE_FUNCTIONS[0].name}"

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, prog, "explored", inside)
        return {
            "trace": [attachment.deed(attached=True), attachment.deed(attached=False)],
            "unload": [Deed("unload the module", lambda: kernel.modules.unload(MODULE))],
        }

    return Plan(callers("explored"), operations, may_refuse=frozenset({EWOULDBLOCK, ENOENT}))


def detach_while_program_sleeps(stage: Stage) -> Plan:
    """Detach and unload a program while a task sleeps in it.

    Not earlier: a kernel may free a program before a task that is about to enter it, and sleeps in it, because grace
    periods for sleepable programs wait only for tasks that have entered one.
    """
    sleeps = stage.program("fentry", sleeps=True)
    link = stage.attach(sleeps, "explored")
    asleep = Until(stage, TaskState.SLEEPING, TaskState.DONE)

    def operations() -> dict[str, Operation]:
        return {"detach": [others_wait(stage), asleep.deed(), *detach(stage, link, sleeps)]}

    return Plan(
        callers("explored", both=True)[:1], operations, attached={"explored": frozenset({0})}, state=[link]
    )


def tracer_comes_and_goes(stage: Stage) -> Plan:
    """Register and unregister a function tracer, while both CPUs call, on a function that has a program and on one that
    has none, whose site then calls the tracer's own trampoline.
    """
    prog = stage.program("fentry")
    link = stage.attach(prog, "explored")
    kernel = stage.lab.kernel
    functions = ("explored", "explored_1")

    def operations() -> dict[str, Operation]:
        ops = tracer_of(stage, *functions)
        return {
            "trace": [
                Deed("register", lambda: kernel.ftrace.register_ftrace_function(ops)),
                Deed("unregister", lambda: kernel.ftrace.unregister_ftrace_function(ops)),
            ]
        }

    return Plan(
        callers(*reversed(functions)), operations, attached={"explored": frozenset({0})}, state=[link], restores=True
    )


def tracer_stays(stage: Stage) -> Plan:
    """Attach and detach a program on other functions while one function has both a tracer and a program, so that both
    CPUs, which call it, walk the list of ftrace_ops and read their filters.
    """
    kept, added = stage.program("fentry"), stage.program("fexit")
    link = stage.attach(kept, "explored")
    stage.lab.kernel.ftrace.register_ftrace_function(tracer_of(stage, "explored"))

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, added, "explored_1", "explored_2")
        return {"trace": [attachment.deed(attached=True), attachment.deed(attached=False)]}

    return Plan(
        callers("explored"), operations, attached={"explored": frozenset({0})}, state=[link], restores=True
    )


def statistics_meet_attach(stage: Stage) -> Plan:
    """Enable and disable run-time statistics while a second program is attached and detached, and both CPUs call. The
    clock of one CPU reads 0, the start time that programs record while statistics are off.
    """
    kept, added = stage.program("fentry"), stage.program("fexit")
    link = stage.attach(kept, "explored")
    lab = stage.lab
    PERCPU.view(lab.kernel.machine, lab.kernel.percpu_areas[1]).sched_clock = 1000

    def operations() -> dict[str, Operation]:
        attachment = Attachment(stage, added, "explored")
        return {
            "statistics": [
                Deed("statistics", lambda: lab.stats(enabled=True), functions=("explored",)),
                Deed("no statistics", lambda: lab.stats(enabled=False), functions=("explored",)),
            ],
            "trace": [attachment.deed(attached=True), attachment.deed(attached=False)],
        }

    return Plan(
        callers("explored"), operations, attached={"explored": frozenset({0})}, state=[link], restores=True
    )


def livepatch_comes_and_goes(stage: Stage) -> Plan:
    """Livepatch a function, attach programs, call it, disable the livepatch, detach the programs."""
    progs = stage.program("fentry"), stage.program("fexit")
    patch, called = Livepatch(stage, "explored"), Until(stage, TaskState.DONE)

    def operations() -> dict[str, Operation]:
        attachments = [Attachment(stage, prog, "explored") for prog in progs]
        come, go = ([one.deed(attached=on) for one in attachments] for on in (True, False))
        return {"livepatch": [patch.deed(on=True), *come, called.deed(), patch.deed(on=False), *go]}

    return Plan(
        callers("explored", "explored"), operations, may_refuse=frozenset({EBUSY, EAGAIN}), restores=True
    )


def livepatch_meets_modify(stage: Stage) -> Plan:
    """Enable and disable a livepatch while programs are attached and detached, and both CPUs call the function."""
    progs = stage.program("fentry"), stage.program("fexit")
    patch = Livepatch(stage, "explored")

    def operations() -> dict[str, Operation]:
        attachments = [Attachment(stage, prog, "explored") for prog in progs]
        return {
            "livepatch": [patch.deed(on=True), patch.deed(on=False)],
            "trace": [one.deed(attached=on) for on in (True, False) for one in attachments],
        }

    return Plan(
        callers("explored", "explored"), operations, may_refuse=frozenset({EBUSY, EAGAIN}), restores=True
    )


def failures_on_the_way(stage: Stage) -> Plan:
    """Attach and detach a second program repeatedly, with a failing allocation or text write at one point after the
    other, until none is left to fail; meanwhile both CPUs call.
    """
    kept, added = stage.program("fentry"), stage.program("fexit")
    functions = ("explored", "explored_1")
    link = stage.attach(kept, "explored")
    kernel = stage.lab.kernel
    process = kernel.process

    def text() -> list[bytes]:
        return kernel.machine.read_each([kernel.function(name).address for name in functions], SITE_SIZE + 4)

    def persistently(do: Callable[[], object], kind: PointKind) -> None:
        for number in range(1, _MOST_POINTS):
            before = text()
            try:
                with process.fail_at(kind, number, lambda what: KernelError(ENOMEM, what)):
                    do()
            except KernelError as error:
                if error.errno != ENOMEM:
                    raise
                if text() != before:
                    raise Violation("failed and changed", f"sites are not as they were before {error}") from error
            else:
                return

    def operations() -> dict[str, Operation]:
        deeds = []
        for kinds in ((PointKind.PATCH, PointKind.ALLOC), (PointKind.ALLOC, PointKind.PATCH)):
            attachment = Attachment(stage, added, *functions)
            for attached, kind in zip((True, False), kinds, strict=True):
                deed = attachment.deed(attached=attached)
                deed.do = partial(persistently, deed.do, kind)
                deeds.append(deed)
        return {"modify": deeds}

    return Plan(
        callers(*functions * 3), operations, attached={"explored": frozenset({0})}, state=[link], restores=True
    )


Scenario = Callable[[Stage], Plan]

SCENARIOS: dict[str, Scenario] = {
    "attach-during-call": attach_during_call,
    "detach-during-call": detach_during_call,
    "detach-while-sleeping": detach_while_sleeping,
    "modify-during-call": modify_during_call,
    "resize-during-lookup": resize_during_lookup,
    "cookies-change": cookies_change,
    "two-attaches": two_attaches,
    "batch-patching": batch_patching,
    "livepatch-meets-fexit": livepatch_meets_fexit,
    "module-unload": module_unload,
    "detach-while-program-sleeps": detach_while_program_sleeps,
    "tracer-comes-and-goes": tracer_comes_and_goes,
    "tracer-stays": tracer_stays,
    "statistics-meet-attach": statistics_meet_attach,
    "livepatch-comes-and-goes": livepatch_comes_and_goes,
    "livepatch-meets-modify": livepatch_meets_modify,
    "failures-on-the-way": failures_on_the_way,
}
"""All scenarios by name."""

_RESIZES = "resize-during-lookup"
"""The scenario for designs with a hash table of metadata."""


def applies(scenario: str, design: str) -> bool:
    """True if a design, by name, supports a scenario; designs outside of ``DESIGNS`` are assumed to."""
    return scenario != _RESIZES or ":" in design or NamedDesign.of(design).found_by == "hash"


def designs_for(scenario: str) -> tuple[str, ...]:
    """The designs of ``DESIGNS`` that support a scenario, with the metadata back end that it needs."""
    forms = [*DESIGNS, *(f"{name}+{one}" for name, info in DESIGNS.items() for one in info.metadata or ())]
    return tuple(form for form in forms if applies(scenario, form)) if scenario == _RESIZES else tuple(DESIGNS)


def vcpus_of(scenario: str) -> int:
    """Number of vCPUs of a scenario."""
    return 2

