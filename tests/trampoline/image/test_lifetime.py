"""How long images and programs live: the put protocol of ``bpf_tramp_image`` (kernel-facts: image lifetime)."""

import pytest

from emu.errors import GuestFault
from emu.events import GracePeriodOver, ImageFreed
from emu.kernel.rcu import RcuFlavour
from emu.machine.task import TaskState

NOTHING = "xor eax, eax\nret"


@pytest.fixture(params=["per-function", "generic", "specialised"])
def any_lab(request, make_lab):
    return make_lab("6.12", design=request.param)


def freed(lab):
    # Who sleeps is past the thunk.
    others = ("bpf_prog", "tramplab_thunks")
    return [e.name for e in lab.kernel.events if isinstance(e, ImageFreed) and not e.name.startswith(others)]


def periods(lab):
    return [e.flavour for e in lab.kernel.events if isinstance(e, GracePeriodOver)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fentry", [RcuFlavour.RCU_TASKS_TRACE, RcuFlavour.RCU_TASKS]),
        # RCU is percpu_ref_kill's own.
        ("fexit", [RcuFlavour.RCU_TASKS, RcuFlavour.RCU, RcuFlavour.RCU_TASKS]),
    ],
)
def test_grace_periods_before_an_image_is_freed(lab, kind, expected):
    link = lab.attach(lab.prog(kind, NOTHING), "bpf_fentry_test1")
    lab.kernel.events.clear()
    link.detach()
    assert periods(lab) == expected
    assert len(freed(lab)) == 1


@pytest.mark.parametrize("design", ["per-function", "generic", "specialised"])
@pytest.mark.parametrize("flavour", ["6.1", "6.12", "7.2"])
def test_an_image_outlives_a_task_that_sleeps_in_the_original(make_lab, flavour, design):
    # e21aa341785c: the image was freed while a task slept in the original function.
    lab, ran = make_lab(flavour, design=design), []
    lab.attach(lab.prog("fentry", lambda ctx: ran.append("entry"), name="e"), "tramplab_sleeps")
    link = lab.attach(lab.prog("fexit", lambda ctx: ran.append("exit"), name="x"), "tramplab_sleeps")
    lab.kernel.events.clear()
    task = lab.kernel.task("sleeper", "tramplab_sleeps", 41)
    lab.kernel.machine.vcpus[0].run(task)
    assert task.state is TaskState.SLEEPING
    link.detach()
    assert freed(lab) == []
    task.wake()
    stop = lab.kernel.machine.vcpus[0].run(task)
    assert stop.value == 42
    # The fexit program may be gone by now: the image jumps over it.
    assert ran == ["entry"]
    lab.kernel.rcu.settle()
    assert len(freed(lab)) == 1


def test_an_image_outlives_a_task_that_was_preempted_at_its_beginning(any_lab):
    link = any_lab.attach(any_lab.prog("fexit", NOTHING), "bpf_fentry_test1")
    any_lab.kernel.events.clear()
    task = any_lab.kernel.task("slow", "bpf_fentry_test1", 1)
    any_lab.kernel.machine.vcpus[0].run(task, preempt_after=5)
    link.detach()
    assert freed(any_lab) == []
    assert any_lab.kernel.machine.vcpus[0].run(task).value == 2
    any_lab.kernel.rcu.settle()
    assert len(freed(any_lab)) == 1


def test_a_sleepable_program_holds_a_fentry_image(any_lab):
    def program(ctx):
        ctx.vcpu.sleep()

    link = any_lab.attach(any_lab.prog("fentry", program, sleepable=True), "bpf_fentry_test1")
    any_lab.kernel.events.clear()
    task = any_lab.kernel.task("sleeper", "bpf_fentry_test1", 1)
    any_lab.kernel.machine.vcpus[0].run(task)
    assert task.state is TaskState.SLEEPING
    link.detach()
    assert freed(any_lab) == []
    task.wake()
    assert any_lab.kernel.machine.vcpus[0].run(task).value == 2
    any_lab.kernel.rcu.settle()
    assert len(freed(any_lab)) == 1


def test_executing_a_freed_image_is_a_fault_that_names_it(lab):
    link = lab.attach(lab.prog("fentry", NOTHING), "bpf_fentry_test1")
    address = link.trampoline.cur_image.image
    link.detach()
    with pytest.raises(GuestFault, match=r"bpf_trampoline_.*freed"):
        lab.kernel.call(address)


def test_a_new_image_is_live_before_the_old_one_is_freed(lab):
    first = lab.attach(lab.prog("fentry", NOTHING), "bpf_fentry_test1")
    old = first.trampoline.cur_image
    lab.attach(lab.prog("fentry", NOTHING), "bpf_fentry_test1")
    assert old.freed
    assert first.trampoline.cur_image.image != old.image


def test_a_program_is_freed_after_its_last_link(any_lab):
    prog = any_lab.prog("fentry", NOTHING)
    link = any_lab.attach(prog, "bpf_fentry_test1")
    any_lab.unload(prog)
    assert prog.address in any_lab.programs.loaded
    link.detach()
    assert prog.address not in any_lab.programs.loaded


def test_a_task_goes_on_on_another_cpu_inside_a_trampoline(make_lab):
    lab, seen = make_lab("6.12", vcpus=2), []
    lab.attach(lab.prog("fexit", lambda ctx: seen.append((ctx.vcpu.index, ctx.ret))), "tramplab_sleeps")
    task = lab.kernel.task("traveller", "tramplab_sleeps", 41)
    lab.kernel.machine.vcpus[0].run(task)
    task.wake()
    assert lab.kernel.machine.vcpus[1].run(task).value == 42
    assert seen == [(1, 42)]
    assert lab.programs.misses(next(iter(lab.programs.loaded.values()))) == 0
