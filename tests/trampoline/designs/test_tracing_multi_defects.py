"""The posted series' defects: each there with its switch on, and gone with it off."""

from dataclasses import fields

import pytest

from emu.errors import GuestFault
from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.task import TaskState
from refusals import refused
from trampoline.bpf.errors import KernelError, Oops
from trampoline.designs.tracing_multi import tracing_multi_v2
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.tramp_links import TrampProgType

EEXIST, EINVAL, EBUSY, E2BIG, ENOMEM = 17, 22, 16, 7, 12
NOTHING = "xor eax, eax\nret"
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]
REPAIRED = TracingMultiDefects()


@pytest.fixture
def make_series(make_lab):
    def make(defects=REPAIRED, **options):
        return make_lab("6.12", **options, design=tracing_multi_v2("tracing-multi-v2", defects))

    return make


def users(lab, name):
    function = lab.kernel.function(name).address
    return lab.design.mds.md(function).users if lab.design.mds.find(function) else 0


def programs(lab, name, kind=TrampProgType.FENTRY):
    return len(lab.design.mds.programs(lab.kernel.function(name).address, kind))


def called_by(lab, name):
    """Whether the function's site is patched."""
    return lab.kernel.function(name).site in lab.kernel.ftrace.direct_functions


def test_the_design_by_name_is_the_series_as_posted(make_lab):
    for name, defects in (
        ("tracing-multi-v2", TracingMultiDefects.as_posted()),
        ("tracing-multi-v2-fixed", REPAIRED),
        ("tracing-multi-v1", REPAIRED),
    ):
        assert make_lab("6.12", design=name).design.mds.defects == defects
    assert all(getattr(TracingMultiDefects.as_posted(), field.name) for field in fields(TracingMultiDefects))


# 1: a look-up that finds nothing --------------------------------------------------------------------------------------


def overtaken(lab):
    """A CPU is in the stub when the last link goes."""
    link = lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES)
    task = lab.kernel.task("traced", NAMES[1], 20, 22)
    vcpu = lab.kernel.machine.vcpus[0]
    # endbr64, the site's call, and the first instruction of the stub.
    vcpu.run(task, preempt_after=3)
    link.detach()
    vcpu.run(task)
    assert task.state is TaskState.DONE
    return task.value


def test_a_missing_result_is_dereferenced(make_series):
    lab = make_series(TracingMultiDefects(null_result=True))
    with pytest.raises(GuestFault) as caught:
        overtaken(lab)
    # kfunc_md.bpf_origin_call of metadata at address 0.
    assert caught.value.address == 82
    assert lab.kernel.kallsyms.function_name(caught.value.rip) == "bpf_global_caller_2_run"
    assert overtaken(make_series()) == 42
    with pytest.raises(GuestFault):
        overtaken(make_series(TracingMultiDefects.as_posted()))


def test_functions_that_are_not_aligned_are_never_found(make_series):
    odd = FunctionText("odd", "lea eax, [rdi + 1]\nret", "int odd(int a)", address=0xFFFFFFFF81400008)
    lab = make_series(TracingMultiDefects(null_result=True), functions=(AssemblyFunctions((odd,)),))
    lab.attach_multi(lab.prog("fentry_multi", NOTHING), ["odd"])
    with pytest.raises(GuestFault):
        lab.call("odd", 1)


# 2: a resize copies the metadata --------------------------------------------------------------------------------------


def slept_over_a_resize(lab):
    """A task sleeps in the original while the table grows and the program is detached; the kernel's free nodes are
    poisoned.
    """
    prog = lab.prog("fexit_multi", NOTHING)
    link = lab.attach_multi(prog, ["tramplab_sleeps"])
    task = lab.kernel.task("sleeper", "tramplab_sleeps", 41)
    vcpu = lab.kernel.machine.vcpus[0]
    vcpu.run(task)
    before = lab.design.mds.find(lab.kernel.function("tramplab_sleeps").address)
    names = [*(f"tramplab_args{number}" for number in range(7)), *(f"bpf_fentry_test{n}" for n in range(1, 11))]
    lab.attach_multi(lab.prog("fentry_multi", NOTHING), names)
    moved = lab.design.mds.find(lab.kernel.function("tramplab_sleeps").address) != before
    link.detach()
    task.wake()
    vcpu.run(task)
    return moved, task.value


def test_a_sleeper_walks_a_freed_list(make_series):
    with pytest.raises(GuestFault):
        slept_over_a_resize(make_series(TracingMultiDefects(resize_copies=True)))
    assert slept_over_a_resize(make_series()) == (False, 42)
    with pytest.raises(GuestFault):
        slept_over_a_resize(make_series(TracingMultiDefects.as_posted()))


# 5: unlinking stops at the first function without the program ---------------------------------------------------------


def partly_unlinked(lab):
    """One function of a link has lost the program by some other way; then the link is detached."""
    prog = lab.prog("fentry_multi", NOTHING)
    link = lab.attach_multi(prog, NAMES[:4])
    lab.design.mds.unlink(lab.kernel.function(NAMES[1]).address, prog.address, TrampProgType.FENTRY)
    refused(EINVAL, link.detach)
    lab.kernel.rcu.settle()
    return [(programs(lab, name), users(lab, name), called_by(lab, name)) for name in NAMES[:4]]


def test_unlinking_stops_and_leaks(make_series):
    for defects in (TracingMultiDefects(unlink_stops=True), TracingMultiDefects.as_posted()):
        assert partly_unlinked(make_series(defects)) == [(0, 1, True), (0, 1, True), (1, 1, True), (1, 1, True)]
    # The repaired series does what it can, and says so; what lost its program keeps its user.
    assert partly_unlinked(make_series()) == [(0, 0, False), (0, 1, False), (0, 0, False), (0, 0, False)]


def test_a_function_twice_leaks(make_series):
    stops = TracingMultiDefects(unlink_stops=True)
    for defects, left in ((TracingMultiDefects.as_posted(), 2), (stops, 0), (REPAIRED, 0)):
        lab = make_series(defects)
        twice = [NAMES[0], lab.kernel.function(NAMES[0]).address]
        refused(EEXIST, lab.attach_multi, lab.prog("fentry_multi", NOTHING), twice)
        lab.kernel.rcu.settle()
        assert (users(lab, NAMES[0]), programs(lab, NAMES[0])) == (left, 0)


# 6: a failed link unlinks functions that it had not come to -----------------------------------------------------------


@pytest.mark.parametrize(
    ("defects", "left"), [(TracingMultiDefects(unlink_walks_all=True, narrow_counters=True), 0), (REPAIRED, 1)]
)
def test_a_failed_link_unlinks_another(make_series, defects, left):
    lab, ran = make_series(defects), []
    prog = lab.prog("fexit_multi", lambda ctx: ran.append(ctx.ip))
    lab.attach_multi(prog, NAMES[:2])
    refused(EEXIST, lab.attach_multi, prog, [NAMES[2], NAMES[1], NAMES[3]])
    lab.kernel.rcu.settle()
    assert lab.call(NAMES[1], 1, 2).value == 3
    assert (len(ran), programs(lab, NAMES[1], TrampProgType.FEXIT), called_by(lab, NAMES[1])) == (
        left,
        left,
        bool(left),
    )
    # It never came to the fourth function, and nevertheless looks for its metadata.
    assert [f"{lab.kernel.function(NAMES[3]).address:#x}" in warning for warning in lab.design.mds.warnings] == (
        [] if left else [True]
    )
    assert not users(lab, NAMES[2])


# 7: counters that wrap ------------------------------------------------------------------------------------------------


def test_256_programs_are_none(make_series):
    for defects in (TracingMultiDefects(narrow_counters=True), TracingMultiDefects.as_posted()):
        lab, ran = make_series(defects), []
        for _ in range(256):
            lab.attach_multi(lab.prog("fentry_multi", lambda ctx, ran=ran: ran.append(1)), [NAMES[0]])
        lab.call(NAMES[0], 1)
        assert len(ran) == 256
        assert lab.design.mds.md(lab.kernel.function(NAMES[0]).address).bpf_prog_cnt == 0
        # The next link on any function that had none drops this one from the filters.
        lab.attach_multi(lab.prog("fentry_multi", NOTHING), [NAMES[1]])
        lab.call(NAMES[0], 1)
        assert (len(ran), called_by(lab, NAMES[0]), called_by(lab, NAMES[1])) == (256, False, True)
    lab = make_series()
    for _ in range(38):
        lab.attach_multi(lab.prog("fentry_multi", NOTHING), [NAMES[0]])
    refused(E2BIG, lab.attach_multi, lab.prog("fentry_multi", NOTHING), [NAMES[0]])


# 4: livepatch meets an ops whose private pointer is of another type ---------------------------------------------------


def test_livepatch_takes_one_object_for_another(make_series):
    for defects in (TracingMultiDefects(confused_ops_func=True), TracingMultiDefects.as_posted()):
        lab = make_series(defects)
        lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
        patch = LivePatch(lab.kernel, NAMES[0], "instead")
        link = lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES)
        with pytest.raises(Oops, match="bpf_trampoline"):
            patch.enable()
        link.detach()
        patch.enable()
        with pytest.raises(Oops, match="bpf_trampoline"):
            lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES)


# 9: program calls without clobbers ------------------------------------------------------------------------------------

# What any program may do: every caller-saved register changes.
_CALLER_SAVED = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11")
_CLOBBERS = "\n".join([*(f"mov {register}, 0x10" for register in _CALLER_SAVED), NOTHING])


@pytest.mark.parametrize("kind", ["fentry_multi", "fexit_multi", "fmod_ret_multi"])
def test_a_program_that_changes_registers(make_series, kind):
    for defects in (TracingMultiDefects(no_clobbers=True), TracingMultiDefects.as_posted()):
        lab = make_series(defects)
        lab.attach_multi(lab.prog(kind, _CLOBBERS), NAMES)
        with pytest.raises(GuestFault):
            lab.call(NAMES[1], 1, 2)
    lab = make_series()
    prog = lab.prog(kind, _CLOBBERS)
    lab.stats(enabled=True)
    with lab.attach_multi(prog, NAMES):
        lab.kernel.advance_clock(100)
        assert [lab.call(name, *range(number)).value for number, name in enumerate(NAMES, 1)] == [1, 1, 3, 6, 10, 15]
        assert lab.programs.runs(prog) == 6


# 10: sites that could not be patched stay in direct_functions ---------------------------------------------------------


def test_a_failed_reset_keeps_its_sites(make_series):
    for defects, kept in ((TracingMultiDefects(failed_reset_keeps=True), True), (REPAIRED, False)):
        lab = make_series(defects)
        lab.attach_multi(lab.prog("fentry_multi", NOTHING), ["tramplab_args2"])
        prog = lab.prog("fentry_multi", NOTHING)
        with lab.kernel.process.fail_at(PointKind.PATCH, 1, lambda what: KernelError(ENOMEM, what)):
            refused(ENOMEM, lab.attach_multi, prog, [NAMES[1]])
        assert called_by(lab, NAMES[1]) == kept
        if kept:
            # Nobody gets there any more.
            refused(EBUSY, lab.attach_multi, prog, [NAMES[1]])
            refused(EBUSY, lab.attach, lab.prog("fentry", NOTHING), NAMES[1])
        else:
            lab.attach_multi(prog, [NAMES[1]])
