"""How long metadata and list nodes live, and what happens to table, padding and pages meanwhile."""

import pytest

from asm.encodings import NOPS, call_depth_account
from emu.errors import GuestFault
from emu.events import GracePeriodOver, TextPatched
from emu.kernel.errors import KernelError
from emu.kernel.process_context import PointKind
from emu.kernel.rcu import RcuFlavour
from emu.kernel.routines.percpu_ref import percpu_ref_get, percpu_ref_put
from emu.machine.task import TaskState
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.flat_table import entry_address
from trampoline.kfunc_md.kfunc_mds import BACKENDS, KfuncMds, MdEntry
from trampoline.kfunc_md.lookup import Entered
from trampoline.kfunc_md.structs import asm_symbols
from trampoline.tramp_links import TrampProgType

PROG = 0xFFFF888000100000
TRACE, TASKS, RCU = RcuFlavour.RCU_TASKS_TRACE, RcuFlavour.RCU_TASKS, RcuFlavour.RCU


def periods(bed):
    return [e.flavour for e in bed.kernel.events if isinstance(e, GracePeriodOver)]


def holder(bed, mds):
    """A guest function that holds a function's metadata while it sleeps, and walks its fexit list afterwards: what a
    caller does around the original call. Gives the last program.
    """
    config = bed.kernel.config
    get = percpu_ref_get(config, "rbx", "kfunc_md.pcref", "get")
    put = percpu_ref_put(config, "rbx", "kfunc_md.pcref", "put")
    look = mds.backend.lookup(Entered("rdi"), label="look", missing="none")
    text = f"""
    push rbx
    push r12
    sub rsp, 8
{look}
    mov rbx, rax
{get.text}
    call schedule
    xor r12d, r12d
    mov rax, qword ptr [rbx + kfunc_md.bpf_progs + 8]
walk:
    test rax, rax
    je walked
    mov r12, qword ptr [rax + kfunc_md_tramp_prog.prog]
    mov rax, qword ptr [rax + kfunc_md_tramp_prog.next]
    jmp walk
walked:
{put.text}
    mov rax, r12
    add rsp, 8
    pop r12
    pop rbx
    ret
none:
    mov eax, 0xdead
    add rsp, 8
    pop r12
    pop rbx
    ret
{get.cold}
{put.cold}
"""
    return bed.place(text, {**asm_symbols(), **mds.backend.symbols}, "holder")


@pytest.mark.parametrize("backend", BACKENDS)
def test_metadata_is_released_in_four_steps(bed, backend):
    mds, rcu = KfuncMds(bed.kernel, backend), bed.kernel.rcu
    func = bed.functions[0]
    md = mds.create(func, 0)
    rcu.automatic = False
    bed.kernel.events.clear()
    mds.put(func)
    assert mds.find(func) == 0
    assert (mds.memory["kfunc_md"], mds.memory["percpu"]) == (88, 8)
    rcu.poll()
    assert periods(bed) == [RCU]
    # percpu_ref_exit comes with the release, the object itself goes last.
    assert (mds.memory["kfunc_md"], mds.memory["percpu"]) == (88, 0)
    rcu.poll()
    assert periods(bed) == [RCU, TRACE]
    assert md in mds.backend.nodes.objects
    rcu.poll()
    assert periods(bed) == [RCU, TRACE, TASKS]
    assert mds.memory["kfunc_md"] == 0
    assert md not in mds.backend.nodes.objects


def test_a_list_node_is_released_in_three_steps(bed):
    mds, rcu = KfuncMds(bed.kernel), bed.kernel.rcu
    mds.create(bed.functions[0], 0)
    mds.link(bed.functions[0], PROG, TrampProgType.FEXIT)
    rcu.automatic = False
    bed.kernel.events.clear()
    mds.unlink(bed.functions[0], PROG, TrampProgType.FEXIT)
    assert mds.memory["kfunc_md_tramp_prog"] == 40
    rcu.poll()
    assert mds.memory["kfunc_md_tramp_prog"] == 40
    rcu.poll()
    assert periods(bed) == [TRACE, TASKS]
    assert mds.memory["kfunc_md_tramp_prog"] == 0


def test_without_references_there_are_two_steps(bed):
    mds = KfuncMds(bed.kernel, refs=False)
    mds.link_entries([MdEntry(func, 0) for func in bed.functions[:5]], PROG, TrampProgType.FENTRY)
    bed.kernel.events.clear()
    mds.unlink_entries([MdEntry(func, 0) for func in bed.functions[:5]], PROG, TrampProgType.FENTRY)
    bed.kernel.rcu.settle()
    assert periods(bed) == [TRACE, TASKS]
    assert mds.memory["kfunc_md"] == mds.memory["kfunc_md_tramp_prog"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("resize", [False, True])
def test_a_task_that_sleeps_holds_its_metadata(bed, backend, resize):
    mds, rcu = KfuncMds(bed.kernel, backend), bed.kernel.rcu
    func = bed.functions[0]
    md = mds.create(func, 0)
    mds.link(func, PROG, TrampProgType.FEXIT)
    task = bed.kernel.task("sleeper", holder(bed, mds), func)
    bed.vcpu.run(task)
    assert task.state is TaskState.SLEEPING
    if resize:
        for other in bed.functions[1:20]:
            mds.create(other, 0)
        mds.put(*bed.functions[1:20])
        rcu.settle()
    mds.unlink(func, PROG, TrampProgType.FEXIT)
    mds.put(func)
    rcu.settle()
    assert md in mds.backend.nodes.objects
    assert mds.memory["kfunc_md"] == 88
    assert mds.memory["kfunc_md_tramp_prog"] == 0
    # A second life of the function meanwhile has metadata of its own.
    assert mds.create(func, 0) != md
    task.wake()
    # The program that was unlinked while it slept is not among those it finds.
    assert bed.vcpu.run(task).value == 0
    rcu.settle()
    assert md not in mds.backend.nodes.objects
    assert mds.memory["kfunc_md"] == 88
    mds.put(func)
    rcu.settle()
    assert mds.memory["kfunc_md"] == 0


def test_the_posted_resize_leaves_a_sleeper_with_a_freed_list(make_bed):
    # Defect 2 by inspection: what is unlinked after a resize stays in the old copy's list, freed.
    for defects in (TracingMultiDefects(), TracingMultiDefects(resize_copies=True)):
        bed = make_bed()
        mds = KfuncMds(bed.kernel, defects=defects)
        func = bed.functions[0]
        md = mds.create(func, 0)
        mds.link(func, PROG, TrampProgType.FEXIT)
        task = bed.kernel.task("sleeper", holder(bed, mds), func)
        bed.vcpu.run(task)
        for other in bed.functions[1:17]:
            mds.create(other, 0)
        assert (mds.find(func) != md) == defects.resize_copies
        assert mds.programs(func, TrampProgType.FEXIT) == [(PROG, 0)]
        mds.unlink(func, PROG, TrampProgType.FEXIT)
        bed.kernel.rcu.settle()
        task.wake()
        if defects.resize_copies:
            with pytest.raises(GuestFault):
                bed.vcpu.run(task)
        else:
            assert bed.vcpu.run(task).value == 0


def test_a_copying_resize_frees_the_old_metadata_and_table(bed):
    mds = KfuncMds(bed.kernel, defects=TracingMultiDefects(resize_copies=True))
    for func in bed.functions[:30]:
        mds.create(func, 1)
    bed.kernel.rcu.settle()
    assert mds.backend.bits == 6
    assert mds.memory["kfunc_md"] == 30 * 88
    assert mds.memory["kfunc_md_array"] == 32 + 8 * 64
    assert all(mds.md(func).func == func and mds.md(func).users == 1 for func in bed.functions[:30])


def test_a_resize_waits_for_the_readers_of_the_table_before(bed):
    mds, rcu = KfuncMds(bed.kernel), bed.kernel.rcu
    code = bed.lookup(mds.backend)
    mds.create(bed.functions[0], 0)
    task = bed.kernel.task("reader", code, bed.functions[0])
    bed.vcpu.run(task, preempt_after=3)
    for func in bed.functions[1:40]:
        mds.create(func, 0)
    rcu.settle()
    assert mds.backend.bits == 5
    assert bed.vcpu.run(task).value == mds.find(bed.functions[0])
    rcu.settle()
    assert mds.memory["kfunc_md_array"] == 32 + 8 * 32
    mds.create(bed.functions[40], 0)
    # Both steps that were put off, in one.
    assert mds.backend.bits == 6
    assert {mds.find(func) != 0 for func in bed.functions[:41]} == {True}


def test_operations_stop_at_locks_publishing_and_grace_periods(bed):
    mds = KfuncMds(bed.kernel, defects=TracingMultiDefects(resize_copies=True))
    for func in bed.functions[:15]:
        mds.create(func, 0)
    task = bed.kernel.process.start(lambda: mds.create(bed.functions[15], 0))
    kinds = []
    while (point := task.step()) is not None:
        kinds.append(point.kind)
        if point.kind is PointKind.PUBLISH:
            assert mds.lock.held
            assert mds.backend.bits == 4
    assert kinds.count(PointKind.LOCK) == kinds.count(PointKind.UNLOCK) == kinds.count(PointKind.PUBLISH) == 1
    assert PointKind.GRACE_PERIOD in kinds
    assert mds.backend.bits == 5


# Padding -------------------------------------------------------------------------------------------------------------


def front(bed, func):
    return bed.kernel.machine.read(func - 16, 16)


def test_padding_is_claimed_and_given_back_through_text_poke(make_bed):
    bed = make_bed(vcpus=2)
    mds = KfuncMds(bed.kernel, "padding")
    func = bed.functions[2]
    code = bed.kernel.machine.read(func, 16)
    md = mds.create(func, 0)
    assert front(bed, func) == b"\xb8" + (md & 0xFFFFFFFF).to_bytes(4, "little") + b"\x90" * 11
    assert len([e for e in bed.kernel.events if isinstance(e, TextPatched)]) == 3
    bed.kernel.rcu.automatic = False
    mds.put(func)
    assert front(bed, func) == b"\x90\0\0\0\0" + b"\x90" * 11
    while bed.kernel.rcu.poll():
        pass
    assert front(bed, func) == b"\x90" * 16
    assert bed.kernel.machine.read(func, 16) == code
    assert all(not vcpu.pending() for vcpu in bed.kernel.machine.vcpus)


@pytest.mark.parametrize("checked", [False, True])
def test_every_phase_of_a_padding_write_is_harmless(make_bed, checked):
    """Two CPUs: one looks up after every step of a removal, a new claim and the return of the nops."""
    bed = make_bed(vcpus=2)
    mds = KfuncMds(bed.kernel, "padding")
    func = bed.functions[2]
    code = bed.lookup(mds.backend, checked=checked)
    first = mds.create(func, 0)
    bed.kernel.rcu.automatic = False
    seen = []

    def watch(operation):
        task = bed.kernel.process.start(operation)
        while not task.done:
            task.step()
            for cpu in (0, 1):
                seen.append(bed.kernel.machine.vcpus[cpu].call(code, func).value)

    watch(lambda: mds.put(func))
    assert set(seen) == {first, 0xDEAD}
    seen.clear()
    second = []
    watch(lambda: second.append(mds.create(func, 0)))
    assert set(seen) == {second[0], 0xDEAD}
    while bed.kernel.rcu.poll():
        pass
    # The first life's end did not take the second one's padding.
    assert mds.find(func) == second[0] != first
    mds.put(func)
    seen.clear()
    bed.kernel.rcu.poll()
    bed.kernel.rcu.poll()
    if checked:
        watch(bed.kernel.rcu.poll)
        assert set(seen) == {0xDEAD}
        assert front(bed, func) == b"\x90" * 16


def test_text_being_patched_delays_the_nops(bed):
    mds = KfuncMds(bed.kernel, "padding")
    mds.create(bed.functions[0], 0)
    mds.put(bed.functions[0])
    with bed.kernel.text_poke.text_mutex:
        bed.kernel.rcu.settle()
    assert mds.backend.claimed == 1
    mds.create(bed.functions[1], 0)
    assert mds.backend.claimed == 1
    assert front(bed, bed.functions[0]) == b"\x90" * 16


def test_call_depth_accounting_leaves_room(bed):
    func = bed.functions[0]
    account = call_depth_account(func - 9, 0x35010)[:9]
    bed.kernel.machine.load(func - 9, account)
    mds = KfuncMds(bed.kernel, "padding")
    md = mds.create(func, 0)
    assert front(bed, func)[7:] == account
    assert bed.run(bed.lookup(mds.backend, checked=True), func).value == md
    mds.put(func)
    bed.kernel.rcu.settle()
    assert front(bed, func) == b"\x90" * 7 + account


@pytest.mark.parametrize("nops", [NOPS[5] + NOPS[11], NOPS[3] + NOPS[2] + NOPS[11]])
def test_other_nops_come_back_as_they_were(bed, nops):
    func = bed.functions[0]
    bed.kernel.machine.load(func - 16, nops)
    mds = KfuncMds(bed.kernel, "padding")
    mds.create(func, 0)
    mds.put(func)
    bed.kernel.rcu.settle()
    assert front(bed, func) == nops


@pytest.mark.parametrize(
    ("flavour", "what", "message"),
    [
        ("6.1", "none", "no padding"),
        ("6.12", "taken", "is taken"),
        ("6.12", "cut", "is taken"),
        ("6.12", "unaligned", "aligned"),
        ("6.12", "nowhere", "nothing is in front"),
    ],
)
def test_what_can_not_be_claimed_is_refused(make_bed, flavour, what, message):
    bed = make_bed(flavour)
    func = {"unaligned": bed.functions[0] + 8, "nowhere": 0xFFFFFFFFBE000010}.get(what, bed.functions[0])
    if what == "taken":
        bed.kernel.machine.load(func - 14, b"\xb8")
    if what == "cut":
        bed.kernel.machine.load(func - 16, NOPS[11] + NOPS[5])
    mds = KfuncMds(bed.kernel, "padding")
    before = bed.kernel.machine.read(bed.functions[0] - 16, 64), bed.kernel.slab.objects
    with pytest.raises(KernelError, match=message) as refused:
        mds.link_entries([MdEntry(bed.functions[1], 0), MdEntry(func, 0)], PROG, TrampProgType.FENTRY)
    assert refused.value.errno == 95
    assert (bed.kernel.machine.read(bed.functions[0] - 16, 64), bed.kernel.slab.objects) == before
    assert mds.memory["kfunc_md"] == 0


# The flat table ------------------------------------------------------------------------------------------------------


def test_pages_of_the_flat_table_come_and_go(make_bed):
    bed = make_bed("6.1")
    mds = KfuncMds(bed.kernel, "flat")
    far = 0xFFFFFFFF82000000
    for func in (bed.functions[0], bed.functions[1], far):
        mds.create(func, 0)
    assert mds.memory["flat table"] == 2 * 4096
    assert bed.kernel.machine.is_mapped(entry_address(far))
    mds.put(far)
    assert bed.kernel.machine.is_mapped(entry_address(far))
    bed.kernel.rcu.settle()
    assert mds.memory["flat table"] == 4096
    assert not bed.kernel.machine.is_mapped(entry_address(far))
    for func in (0xFFFFFFFF7FFFFFF0, bed.functions[0] + 8):
        with pytest.raises(KernelError) as refused:
            mds.create(func, 0)
        assert refused.value.errno == 95
        assert mds.find(func) == 0


def test_the_flat_table_does_not_take_what_is_somebody_elses(bed):
    page = entry_address(bed.functions[0]) & -4096
    bed.kernel.map_data(page, 4096)
    mds = KfuncMds(bed.kernel, "flat")
    with pytest.raises(KernelError) as refused:
        mds.create(bed.functions[0], 0)
    assert refused.value.errno == 12
    assert mds.memory["kfunc_md"] == 0
