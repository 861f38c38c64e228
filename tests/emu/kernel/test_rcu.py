import pytest

from emu.events import GracePeriodBegun, GracePeriodOver
from emu.kernel.rcu import RcuFlavour
from emu.process import Deadlock
from emu.structs import task_struct
from emu.task import TaskState

RCU, TASKS, TRACE = RcuFlavour.RCU, RcuFlavour.RCU_TASKS, RcuFlavour.RCU_TASKS_TRACE


def nest(kernel, task, field, depth):
    setattr(task_struct.view(kernel.machine, task.address), field, depth)


def over(kernel, flavour):
    done = []
    kernel.rcu.call(flavour, lambda: done.append(flavour))
    kernel.rcu.poll()
    return bool(done)


@pytest.mark.parametrize("flavour", list(RcuFlavour))
def test_without_readers_a_grace_period_ends_at_once(kernel, flavour):
    assert over(kernel, flavour)
    kernel.rcu.synchronize(flavour)
    begun = [e for e in kernel.events if isinstance(e, GracePeriodBegun)]
    ended = [e for e in kernel.events if isinstance(e, GracePeriodOver)]
    assert (len(begun), len(ended)) == (2, 2)
    assert kernel.rcu.now_ns == 2 * kernel.rcu.durations[flavour]


def test_who_waits_for_a_task_that_was_preempted(kernel):
    task = kernel.task("reader", "bpf_fentry_test6", 1, 2, 3, 4, 5, 6)
    kernel.machine.vcpus[0].run(task, preempt_after=2)
    assert task.state is TaskState.RUNNABLE
    assert over(kernel, RCU)  # outside of a read section
    assert not over(kernel, TASKS)
    assert over(kernel, TRACE)
    nest(kernel, task, "rcu_read_lock_nesting", 1)
    assert not over(kernel, RCU)
    nest(kernel, task, "rcu_read_lock_nesting", 0)
    kernel.machine.vcpus[0].run(task)
    kernel.rcu.settle()
    assert kernel.rcu.pending == 0


def test_who_waits_for_a_task_that_sleeps(kernel):
    task = kernel.task("sleeper", "tramplab_sleeps", 1)
    kernel.machine.vcpus[0].run(task)
    assert task.state is TaskState.SLEEPING
    assert over(kernel, RCU)
    assert over(kernel, TASKS)
    nest(kernel, task, "trc_reader_nesting", 1)
    assert not over(kernel, TRACE)
    nest(kernel, task, "trc_reader_nesting", 0)
    kernel.rcu.settle()
    assert kernel.rcu.pending == 0


def test_a_tasks_grace_period_ends_when_the_task_sleeps(kernel):
    task = kernel.task("sleeper", "tramplab_sleeps", 1)
    kernel.machine.vcpus[0].run(task, preempt_after=2)
    done = []
    kernel.rcu.call(TASKS, lambda: done.append(True))
    kernel.rcu.poll()
    assert not done
    kernel.machine.vcpus[0].run(task)
    kernel.rcu.poll()
    assert done


def test_a_reader_that_came_later_is_not_waited_for(kernel):
    first = kernel.task("first", "tramplab_sleeps", 1)
    kernel.machine.vcpus[0].run(first)
    nest(kernel, first, "trc_reader_nesting", 1)
    done = []
    kernel.rcu.call(TRACE, lambda: done.append(True))
    second = kernel.task("second", "tramplab_sleeps", 1)
    kernel.machine.vcpus[0].run(second)
    nest(kernel, second, "trc_reader_nesting", 1)
    nest(kernel, first, "trc_reader_nesting", 0)
    kernel.rcu.poll()
    assert done


def test_waiting_for_a_reader_that_cannot_go_on_is_a_deadlock(kernel):
    task = kernel.task("reader", "bpf_fentry_test6", 1, 2, 3, 4, 5, 6)
    kernel.machine.vcpus[0].run(task, preempt_after=2)
    with pytest.raises(Deadlock, match="reader"):
        kernel.rcu.synchronize(TASKS)


def test_callbacks_run_in_order_and_may_begin_new_grace_periods(kernel):
    order = []
    kernel.rcu.call(RCU, lambda: (order.append(1), kernel.rcu.call(TASKS, lambda: order.append(3))))
    kernel.rcu.call(RCU, lambda: order.append(2))
    kernel.rcu.settle()
    assert order == [1, 2, 3]
