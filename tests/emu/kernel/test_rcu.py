import pytest

from emu.events import GracePeriodBegun, GracePeriodOver
from emu.kernel.process_context import Deadlock, PointKind
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import task_struct
from emu.machine.task import TaskState

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


# Sharing ------------------------------------------------------------------------------------------------------------


def begun(kernel):
    return [event.flavour for event in kernel.events if isinstance(event, GracePeriodBegun)]


def test_callbacks_of_a_block_share_grace_periods_that_begin_at_its_end(kernel):
    done = []
    with kernel.rcu.sharing():
        for number in range(3):
            kernel.rcu.call(TASKS, lambda number=number: done.append(number))
        kernel.rcu.call(RCU, lambda: done.append("rcu"))
        assert begun(kernel) == []
        assert kernel.rcu.poll() == 0
    assert sorted(begun(kernel)) == [RCU, TASKS]
    kernel.rcu.settle()
    assert sorted(map(str, done)) == ["0", "1", "2", "rcu"]


def test_a_shared_grace_period_waits_for_who_came_in_before_it_began(kernel):
    done = []
    with kernel.rcu.sharing():
        kernel.rcu.call(TASKS, lambda: done.append("first"))
        task = kernel.task("reader", "bpf_fentry_test6", 1, 2, 3, 4, 5, 6)
        kernel.machine.vcpus[0].run(task, preempt_after=2)
        kernel.rcu.call(TASKS, lambda: done.append("second"))
    kernel.rcu.settle()
    assert done == []
    kernel.machine.vcpus[0].run(task)
    kernel.rcu.settle()
    assert done == ["first", "second"]


def test_what_callbacks_ask_for_is_shared_too(kernel):
    with kernel.rcu.sharing():
        for _ in range(4):
            kernel.rcu.call(TRACE, lambda: kernel.rcu.call(TASKS, lambda: None))
    kernel.rcu.settle()
    assert begun(kernel) == [TRACE, TASKS]
    for _ in range(2):
        kernel.rcu.call(TASKS, lambda: None)
    assert begun(kernel) == [TRACE, TASKS, TASKS, TASKS], "outside of a block each has its own"


def test_items_of_one_grace_period_are_freed_together(kernel):
    freed = []
    with kernel.rcu.sharing():
        for item in range(3):
            kernel.rcu.call_bulk(TASKS, freed.append, item)
    kernel.rcu.call_bulk(TASKS, freed.append, 3)
    kernel.rcu.settle()
    assert freed == [[0, 1, 2], [3]]


def test_srcu_waits_until_the_counts_of_all_cpus_add_up_to_nothing(kernel):
    count, done = kernel.percpu.alloc(8, "a count"), []
    machine = kernel.machine
    machine.write_u64(kernel.percpu.address(count, 0), 1)
    kernel.rcu.call_srcu(count, lambda: done.append(True))
    kernel.rcu.settle()
    assert not done
    assert kernel.rcu.pending == 1
    # Whoever came in elsewhere went out here.
    machine.write_u64(kernel.percpu.address(count, 0), 0)
    kernel.rcu.settle()
    assert done == [True]


def test_srcu_counts_that_share_a_grace_period_are_each_waited_for(kernel):
    counts, done = [kernel.percpu.alloc(8, "a count") for _ in range(2)], []
    write = kernel.machine.write_u64
    write(kernel.percpu.address(counts[0], 0), 1)
    write(kernel.percpu.address(counts[1], 0), (1 << 64) - 1)
    with kernel.rcu.sharing():
        for count in counts:
            kernel.rcu.call_srcu(count, lambda count=count: done.append(count))
    kernel.rcu.settle()
    assert done == [], "one and minus one are two different counts"
    write(kernel.percpu.address(counts[0], 0), 0)
    kernel.rcu.settle()
    assert done == []
    write(kernel.percpu.address(counts[1], 0), 0)
    kernel.rcu.settle()
    assert done == counts


def test_another_context_ends_what_a_callback_waits_in_front_of(kernel):
    # The first callback is overtaken; the second grace period ends meanwhile, and is not ended again.
    ran = []

    def interrupted():
        ran.append("first")
        kernel.process.point(PointKind.PUBLISH, "somewhere")

    kernel.rcu.call(RCU, interrupted)
    kernel.rcu.call(RCU, lambda: ran.append("second"))
    task = kernel.process.start(kernel.rcu.settle)
    task.step()
    kernel.rcu.settle()
    task.finish()
    assert ran == ["first", "second"]
    assert kernel.rcu.pending == 0
