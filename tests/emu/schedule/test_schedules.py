import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.errors import EmuError
from emu.kernel.process_context import PointKind
from emu.kernel.rcu import RcuFlavour
from emu.schedule.action import BadSchedule, ScheduleAction, decode, encode, switches
from emu.schedule.report import BROKEN, report, used_columns
from emu.schedule.schedulers.dfs import Exhaustive
from emu.schedule.schedulers.pct import Pct
from emu.schedule.schedulers.replay import Replay
from emu.schedule.schedulers.spec import SCHEDULERS, is_divisible, scheduler_for
from emu.schedule.shrink import shrink


@given(st.lists(st.from_regex(r"[a-z][A-Z]?", fullmatch=True)))
def test_a_schedule_is_its_text(tokens):
    assert decode(encode(tokens)) == tokens
    assert switches(tokens) <= max(len(tokens) - 1, 0)


@pytest.mark.parametrize("text", ["3a", "a-b", "aBC", "é", "a0", "a9999999", "a999999b999999"])
def test_what_is_no_schedule(text):
    with pytest.raises(BadSchedule):
        decode(text)


@pytest.mark.parametrize("spec", sorted(SCHEDULERS))
def test_the_same_seed_makes_the_same_schedules(lab, spec):
    lab = lab(vcpus=2)
    lab.task("calls", cpus=(0,), times=2)
    lab.task("calls", cpus=(1,))
    lab.open()

    def texts(seed):
        scheduler, found = scheduler_for(spec, seed), []
        while len(found) < 20 and scheduler.begin():
            outcome = lab.run(scheduler, [lab.patch])
            scheduler.end(outcome)
            found.append(outcome.text)
        return found

    first = texts(1)
    assert texts(1) == first
    if is_divisible(spec):
        assert texts(2) != first


def test_pct_lets_a_task_stay_away_for_long_whatever_its_priority_is():
    runs, waits, other = (
        ScheduleAction(0, "a"),
        ScheduleAction(0, "a", "wakes up", returns=True),
        ScheduleAction(1, "b"),
    )
    scheduler, first, later = Pct(1, depth=1), 0, 0
    for _ in range(400):
        scheduler.begin()
        if scheduler.choose([runs, other], None, 0).action is runs:
            first += 1
            later += scheduler.choose([waits, other], None, 5).action is other
    # It goes on first in every second schedule, and comes back last in more than half of these.
    assert 150 < first < 250
    assert first / 2 < later < first


def test_an_unknown_scheduler_is_refused():
    with pytest.raises(EmuError, match="no scheduler"):
        scheduler_for("best", 1)
    with pytest.raises(EmuError, match="option"):
        scheduler_for("pct:x", 1)


def test_a_schedule_runs_the_same_twice_with_the_same_counts(lab):
    lab = lab(vcpus=2, counting="auto")
    lab.task("calls", cpus=(0,), times=2)
    lab.task("calls", cpus=(1,))
    lab.open()
    scheduler = Pct(7)

    def seen(outcome):
        counts = [vcpu.counts().by_address for vcpu in lab.kernel.machine.vcpus]
        where = [(taken.action.token, taken.where) for taken in outcome.taken]
        return where, counts, list(lab.kernel.events)

    for _ in range(25):
        scheduler.begin()
        text = lab.run(scheduler, [lab.patch]).text
        runs = []
        for _ in range(2):
            for vcpu in lab.kernel.machine.vcpus:
                vcpu.reset_counts()
            lab.kernel.events.clear()
            replay = Replay(decode(text))
            replay.begin()
            runs.append(seen(lab.run(replay, [lab.patch])))
        assert runs[0] == runs[1]
        assert sum(map(len, runs[0][1])) > 0


def test_a_schedule_that_does_not_fit_is_refused(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    for text, what in (("c", "only a, b"), ("a", "is enabled"), ("a2b9a", "all actors are done")):
        replay = Replay(decode(text))
        replay.begin()
        with pytest.raises(BadSchedule, match=what):
            replay.end(lab.run(replay, [lab.patch]))


def test_two_locks_in_two_orders_are_a_deadlock_made_small_and_reported(lab):
    lab = lab()
    lab.task("calls", times=3)
    lab.open()
    kernel = lab.kernel
    one, other = kernel.ftrace.ftrace_lock, kernel.ftrace.direct_mutex

    def forwards():
        with one, other:
            pass

    def backwards():
        with other, one:
            pass

    operations = [forwards, backwards]
    broken = next(outcome for outcome, _ in lab.all(Exhaustive(), operations) if outcome.violation)
    assert broken.violation.kind == "deadlock"
    made = shrink(lambda scheduler: lab.run(scheduler, operations), broken)
    assert made.outcome.violation.kind == "deadlock"
    assert made.outcome.switches <= 3
    replay = Replay(decode(made.outcome.text))
    replay.begin()
    again = lab.run(replay, operations)
    text = used_columns(report(lab.world, again)).text()
    assert text.count(BROKEN) == 1
    assert "forwards (lock: direct_mutex); backwards (lock: ftrace_lock)" in text


def test_a_stale_pointer_is_a_use_after_free(lab):
    lab = lab()
    kernel = lab.kernel
    pointer = kernel.module_data(8, 8)
    kernel.machine.write_u64(pointer, kernel.slab.alloc(16, "object"))
    lab.task("reads", pointer)
    lab.open()

    def free_at_once():
        old = kernel.machine.read_u64(pointer)
        kernel.machine.write_u64(pointer, kernel.slab.alloc(16, "another"))
        kernel.slab.free(old)

    def free_after_grace_period():
        old = kernel.machine.read_u64(pointer)
        kernel.machine.write_u64(pointer, kernel.slab.alloc(16, "another"))
        kernel.rcu.synchronize(RcuFlavour.RCU)
        kernel.slab.free(old)

    kinds = {outcome.violation.kind for outcome, _ in lab.all(Exhaustive(), [free_at_once]) if outcome.violation}
    assert kinds == {"use after free"}
    assert not [outcome for outcome, _ in lab.all(Exhaustive(), [free_after_grace_period]) if outcome.violation]


@pytest.mark.parametrize(
    ("flavour", "waits"), [(RcuFlavour.RCU, False), (RcuFlavour.RCU_TASKS, False), (RcuFlavour.RCU_TASKS_TRACE, False)]
)
def test_a_sleeper_outside_read_sections_holds_up_no_grace_period(lab, flavour, waits):
    lab = lab()
    value = lab.kernel.module_data(8, 8)
    lab.task("sleeps", value)
    lab.open()

    def waiter():
        lab.kernel.rcu.synchronize(flavour)
        lab.kernel.machine.write_u64(value, 7)

    values = {values for _, values in lab.all(Exhaustive(), [waiter])}
    assert values == {(0,), (7,)}


def test_preempted_tasks_hold_up_rcu_tasks_and_may_migrate(lab):
    lab = lab(vcpus=2)
    lab.task("adds", lab.kernel.module_data(8, 8), cpus=(0, 1), preemptible=lambda vcpu: True,
             migratable=lambda task: True, preemptions=1)  # fmt: skip
    lab.open()
    ended = []

    def waiter():
        (call,) = lab.calls
        is_reader = call.begun >= 0 and call.ended < 0
        lab.kernel.rcu.synchronize(RcuFlavour.RCU_TASKS)
        if is_reader:
            ended.append(call.ended >= 0)

    outcomes = [outcome for outcome, _ in lab.all(Exhaustive(), [waiter])]
    texts = [outcome.text for outcome in outcomes]
    assert not any(outcome.violation for outcome in outcomes)
    # Preempted, and on another CPU afterwards.
    assert any("aP" in text and "aB" in text for text in texts)
    assert ended
    assert all(ended)


def test_a_register_that_is_not_preserved(lab):
    lab = lab()
    lab.task("clobbers")
    lab.open()
    kinds = {outcome.violation.kind for outcome, _ in lab.all(Exhaustive())}
    assert kinds == {"register not preserved"}


def test_fresh_memory_is_no_point_and_published_memory_is(lab):
    lab = lab()
    lab.open()
    kernel = lab.kernel
    seen = []

    def operation():
        address = kernel.slab.alloc(32, "object")
        kernel.machine.write_u64(address, 1)
        kernel.machine.write_u64(kernel.kallsyms.address("ftrace_ops_list"), address)
        kernel.machine.write_u64(address, 2)
        seen.append(address)

    ((outcome, _),) = lab.all(Exhaustive(), [operation])
    stores = [taken.where.address for taken in outcome.taken if taken.where.kind == PointKind.STORE]
    assert stores == [kernel.kallsyms.address("ftrace_ops_list"), seen[0]]


def test_a_checkpoint_gives_every_object_its_content_back(lab):
    lab = lab()
    kernel = lab.kernel
    word, hooks = kernel.module_data(8, 8), kernel.machine.on_fault
    checkpoint = kernel.checkpoint()
    used, images, symbols = kernel.slab.used, dict(kernel.execmem.images), len(list(kernel.kallsyms))
    slab, objects = kernel.slab, kernel.slab.objects
    for number in range(10):
        kernel.slab.alloc(64, f"object {number}")
    kernel.execmem.alloc(100, "image")
    kernel.kallsyms.add("new", 0x1000, 4)
    kernel.rcu.call(RcuFlavour.RCU, lambda: None)
    kernel.machine.write_u64(word, 1)
    hooks.append(lambda vcpu, rip: False)
    kernel.machine.on_int3.append(lambda vcpu: False)
    kernel.restore(checkpoint)
    assert kernel.machine.read_u64(word) == 0
    assert hooks is kernel.machine.on_fault
    assert (hooks, kernel.machine.on_int3[1:]) == ([], [])
    assert kernel.slab is slab
    assert (kernel.slab.used, kernel.slab.objects) == (used, objects)
    assert kernel.execmem.images == images
    assert len(list(kernel.kallsyms)) == symbols
    assert kernel.rcu.pending == 0


def test_where_the_host_has_no_executable_memory_schedules_are_the_same(lab, monkeypatch):
    def texts():
        world = lab(vcpus=2)
        world.task("calls", cpus=(0,), times=2)
        world.task("adds", world.kernel.module_data(8, 8), cpus=(1,))
        world.open()
        scheduler, found = Pct(3), []
        for _ in range(10):
            scheduler.begin()
            outcome = world.run(scheduler, [world.patch])
            scheduler.end(outcome)
            found.append(outcome.text)
        return found

    native = texts()
    monkeypatch.setattr("emu.host.hook_code.native_hooks", lambda: None)
    assert texts() == native
