"""The kernel's own routines: what they cost in each configuration, and that they leave nothing behind."""

import pytest

from emu.errors import GuestFault
from emu.kernel.config import CONFIGS
from emu.kernel.kernel import Kernel
from emu.kernel.routines import BTF_ID_DENY, NOTRACE, kernel_routines, routine_texts
from emu.kernel.routines.migrate import SCA_MIGRATE_ENABLE
from emu.kernel.routines.percpu_ref import percpu_ref_get, percpu_ref_put
from emu.kernel.routines.rcu import rcu_read_lock_trace, rcu_read_unlock_trace
from emu.kernel.routines.routine import Routine, body, ret
from emu.kernel.routines.thunks import RETURN_THUNKS
from emu.kernel.structs import PERCPU, PREEMPT_ENABLED, percpu_ref, rq, task_struct
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import FunctionText

ENTRY = EntryLayout(endbr=True, padding=16)
SET_CPUS = "__set_cpus_allowed_ptr"


def _own(config):
    """Functions around the inline routines, and one that shows which registers a call kept."""
    get = percpu_ref_get(config, "rdi", "percpu_ref", "get_ref")
    put = percpu_ref_put(config, "rdi", "percpu_ref", "put_ref")
    lock = rcu_read_lock_trace(config, "lock_trace")
    unlock = rcu_read_unlock_trace(config, "unlock_trace")
    texts = {
        "get_ref": body(get.text, ret(False), get.cold),
        "put_ref": body(put.text, ret(False), put.cold),
        "lock_trace": body(lock.text, ret(False), lock.cold),
        "unlock_trace": body(unlock.text, ret(False), unlock.cold),
    }
    return {name: Routine(name, text) for name, text in texts.items()}


@pytest.fixture(params=sorted(CONFIGS))
def kernel(request):
    config = CONFIGS[request.param]
    with Kernel(entry=ENTRY, config=config, routines=_own(config), constants={"percpu_ref": 0}) as booted:
        yield booted


def _task(kernel):
    return task_struct.view(kernel.machine, kernel.current(kernel.machine.vcpus[0]))


def _area(kernel):
    return PERCPU.view(kernel.machine, kernel.percpu_areas[0])


def _state(kernel):
    """All that migrate_disable and RCU readers touch."""
    task, area = _task(kernel), _area(kernel)
    return task.migration_disabled, area.runqueues.nr_pinned, area.preempt_count, task.trc_reader_nesting


COUNTS = {
    "voluntary": {
        "migrate_disable": 10, "migrate_enable": 27, "get_ref": 5, "put_ref": 5, "lock_trace": 5, "unlock_trace": 12,
    },
    "lazy": {
        "migrate_disable": 13, "migrate_enable": 16, "get_ref": 8, "put_ref": 8, "lock_trace": 11, "unlock_trace": 6,
    },
    "none": {
        "migrate_disable": 10, "migrate_enable": 13, "get_ref": 5, "put_ref": 5, "lock_trace": 11, "unlock_trace": 6,
    },
}  # fmt: skip


def test_counts(kernel):
    ref = kernel.slab.alloc(percpu_ref.size, "a ref")
    kernel.percpu_refs.init(ref, lambda: None, "a ref")
    counts = {name: kernel.call(name, ref).counts.instructions for name in COUNTS[kernel.config.name]}
    assert counts == COUNTS[kernel.config.name]


def test_migrate_disable_with_its_calls_is_build_p():
    """39 of the anchors' 127 instructions: both functions and the calls that reach them."""
    assert COUNTS["voluntary"]["migrate_disable"] + COUNTS["voluntary"]["migrate_enable"] + 2 == 39


def test_migrate_disable_nests_and_balances(kernel):
    before = _state(kernel)
    assert before == (0, 0, PREEMPT_ENABLED, 0)
    kernel.call("migrate_disable")
    assert _state(kernel) == (1, 1, PREEMPT_ENABLED, 0)
    kernel.call("migrate_disable")
    assert _state(kernel) == (2, 1, PREEMPT_ENABLED, 0), "the run queue counts tasks, not calls"
    kernel.call("migrate_enable")
    assert _state(kernel) == (1, 1, PREEMPT_ENABLED, 0)
    kernel.call("migrate_enable")
    assert _state(kernel) == before


def test_nr_pinned_is_this_cpus():
    with Kernel(entry=ENTRY, vcpus=2) as kernel:
        kernel.call("migrate_disable", cpu=1)
        assert kernel.percpu.values(PERCPU.offset("runqueues") + rq.offset("nr_pinned"), 4) == [0, 1]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_affinity_changed_meanwhile_is_restored_out_of_line(config):
    # Stands in for the host call: notes its arguments where nobody looks otherwise.
    spy = """
    mov rax, qword ptr [rsi]
    mov qword ptr [rdi + task_struct.bpf_ctx], rax ; affinity_context.new_mask
    mov rax, qword ptr [rsi + 0x10]
    mov qword ptr [rdi + task_struct.bpf_storage], rax ; .flags
    ret
"""
    with Kernel(entry=ENTRY, config=config, routines={SET_CPUS: Routine(SET_CPUS, spy)}) as kernel:
        task = _task(kernel)
        kernel.call("migrate_disable")
        kernel.call("migrate_enable")
        assert task.bpf_ctx == 0
        kernel.call("migrate_disable")
        task.cpus_ptr = task.address_of("user_cpus_ptr")  # as migrate_disable_switch() leaves it
        kernel.call("migrate_enable")
        assert (task.bpf_ctx, task.bpf_storage) == (task.address_of("cpus_mask"), SCA_MIGRATE_ENABLE)
        assert _state(kernel) == (0, 0, PREEMPT_ENABLED, 0)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_smashed_stack_is_seen(config):
    smash = "    mov qword ptr [rsp + 0x20], 0                  ; the caller's canary\n    ret\n"
    with Kernel(entry=ENTRY, config=config, routines={SET_CPUS: Routine(SET_CPUS, smash)}) as kernel:
        task = _task(kernel)
        kernel.call("migrate_disable")
        task.cpus_ptr = task.address_of("user_cpus_ptr")
        with pytest.raises(GuestFault, match="__stack_chk_fail"):
            kernel.call("migrate_enable")


def test_enable_without_disable_warns_up_to_6_17():
    with Kernel(entry=ENTRY) as kernel, pytest.raises(GuestFault, match="migrate_enable"):
        kernel.call("migrate_enable")


def test_trace_readers_nest_in_the_task(kernel):
    task, area = _task(kernel), _area(kernel)
    for depth in (1, 2):
        kernel.call("lock_trace")
        assert task.trc_reader_nesting == depth
    for depth in (1, 0):
        kernel.call("unlock_trace")
        assert task.trc_reader_nesting == depth
    readers = int(kernel.config.srcu_tasks_trace)
    counters = area.rcu_tasks_trace_srcu_ctrs[0]
    assert (counters.srcu_locks, counters.srcu_unlocks) == (readers, readers), "only the outermost reader counts"


def test_a_ref_counts_per_cpu_until_it_is_killed_and_is_released_once(kernel):
    released = []
    ref = kernel.slab.alloc(percpu_ref.size, "a ref")
    kernel.percpu_refs.init(ref, lambda: released.append(ref), "a ref")
    view = percpu_ref.view(kernel.machine, ref)
    kernel.call("get_ref", ref)
    kernel.call("get_ref", ref)
    assert kernel.percpu.values(view.percpu_count_ptr) == [2]
    kernel.percpu_refs.kill(ref)
    kernel.rcu.settle()
    assert released == []
    kernel.call("get_ref", ref)
    for _ in range(2):
        kernel.call("put_ref", ref)
        assert released == []
    kernel.call("put_ref", ref)
    assert released == [ref]
    assert kernel.percpu.values(view.percpu_count_ptr & ~3) == [2], "a killed ref leaves the per-CPU counters alone"
    assert _state(kernel) == (0, 0, PREEMPT_ENABLED, 0)


def test_the_last_preempt_enable_reschedules_when_asked():
    config = CONFIGS["lazy"]
    with Kernel(entry=ENTRY, config=config, routines=_own(config), constants={"percpu_ref": 0}) as kernel:
        ref = kernel.slab.alloc(percpu_ref.size, "a ref")
        kernel.percpu_refs.init(ref, lambda: None, "a ref")
        straight = kernel.call("get_ref", ref).counts.instructions
        _area(kernel).preempt_count = 0  # PREEMPT_NEED_RESCHED is inverted
        assert kernel.call("get_ref", ref).counts.instructions > straight
        _area(kernel).preempt_count = PREEMPT_ENABLED + 1  # inside another section: not now
        assert kernel.call("get_ref", ref).counts.instructions == straight


@pytest.mark.parametrize(
    ("thunk", "count"),
    [("__x86_return_thunk", 1), ("its_return_thunk", 1), ("retbleed_return_thunk", 1), ("srso_return_thunk", 3)],
)
def test_return_thunks_return(thunk, count):
    with Kernel(entry=ENTRY) as kernel:
        kernel.add_functions(FunctionText("returns", f"mov eax, 7\njmp {thunk}", traceable=False))
        call = kernel.call("returns")
        assert (call.value, call.counts.instructions) == (7, 2 + count)


def test_the_call_depth_thunk_stuffs_the_return_stack_when_it_may_be_empty():
    with Kernel(entry=ENTRY) as kernel:
        area = _area(kernel)
        kernel.add_functions(
            FunctionText(
                "accounted",
                body("    sar qword ptr gs:[percpu.call_depth], 5\n    mov eax, 7\n    jmp call_depth_return_thunk"),
                traceable=False,
            )
        )
        area.call_depth = 1 << 63  # as after a context switch: one call
        call = kernel.call("accounted")
        assert (call.value, call.counts.instructions) == (7, 3 + 3)
        assert area.call_depth == 1 << 63
        area.call_depth = 0  # nothing left to return to
        call = kernel.call("accounted")
        assert (call.value, call.counts.instructions) == (7, 3 + 2 + 16 + 3), "16 calls fill the return stack"
        assert area.call_depth == (1 << 64) - 1


def test_with_return_thunks_no_routine_returns_by_itself():
    for config in CONFIGS.values():
        plain, thunked = routine_texts(config), routine_texts(config, return_thunk=True)
        assert plain.keys() == thunked.keys()
        for name in plain.keys() - {*RETURN_THUNKS, "srso_safe_ret"}:
            assert "    ret\n" not in thunked[name], name
            assert thunked[name].count("jmp __x86_return_thunk\n") == plain[name].count("    ret\n")


def test_host_calls_are_named_but_have_no_text():
    for config in CONFIGS.values():
        routines = kernel_routines(config)
        host = {name for name, routine in routines.items() if routine.host_call}
        assert "percpu_ref_release" in host
        assert not host & routine_texts(config).keys()
        for routine in routines.values():
            assert set(routine.symbols) <= routines.keys() | {"runqueues"}, routine.name


def test_what_is_never_traced():
    assert set(BTF_ID_DENY) <= NOTRACE
    assert {"migrate_disable", "migrate_enable", "___migrate_enable", "__fentry__", *RETURN_THUNKS} <= NOTRACE
