"""Tasks: current, sleeping, preemption, migration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import GuestFault, MachineError
from emu.machine.task import TaskState
from emu.machine.vcpu import RunStopReason

CURRENT = 0x20
RESULT = "push rbx\nmov rbx, rdi\nshl rbx, 4\nmov rcx, rbx\nadd rcx, rsi\nlea rax, [rbx + rcx*2]\npop rbx\nret"


def sleeper(bench):
    """A function that adds its argument, GS-based data before and after a sleep, and current's word."""
    stub = bench.machine.host_call("schedule", type(bench.cpu).sleep)
    return bench.place(
        """
        push rbx
        push r12
        mov rbx, rdi
        mov r12, qword ptr gs:[0x10]
        call stub
        add rbx, r12
        mov rax, qword ptr gs:[0x10]
        add rax, rbx
        pop r12
        pop rbx
        ret
        """,
        stub=stub,
    )


def test_a_task_runs_until_it_returns(bench):
    task = bench.machine.task("kthread", bench.place("lea rax, [rdi + rsi]\nret"), (40, 2))
    assert (task.state, task.in_kernel) == (TaskState.RUNNABLE, False)
    stop = bench.cpu.run(task)
    assert (stop.reason, stop.task, stop.value) == (RunStopReason.RETURNED, task, 42)
    assert (task.state, task.in_kernel, task.value) == (TaskState.DONE, False, 42)
    assert bench.cpu.task is bench.cpu.idle
    with pytest.raises(MachineError, match="is done"):
        bench.cpu.run(task)


def test_current_is_the_task_that_runs(make):
    bench = make(vcpus=2)
    machine = bench.machine
    machine.current_offset = CURRENT
    task = machine.task("kthread", bench.place("mov rax, qword ptr gs:[0x20]\nret"), struct=0xFFFF888000001000)
    for cpu in machine.vcpus:
        cpu.idle.address = 0xFFFF888000002000 + cpu.index
        machine.write_u64(cpu.gs_base + CURRENT, cpu.idle.address)
    assert machine.vcpus[1].run(task).value == 0xFFFF888000001000
    for cpu in machine.vcpus:
        assert machine.read_u64(cpu.gs_base + CURRENT) == cpu.idle.address


def test_sleep_wake_and_resume_on_another_vcpu(make):
    """Registers travel; per-CPU data is that of whatever CPU the task is on."""
    bench = make(vcpus=2)
    machine = bench.machine
    one, two = machine.vcpus
    machine.write_u64(one.gs_base + 0x10, 1000)
    machine.write_u64(two.gs_base + 0x10, 5)
    task = machine.task("sleeper", sleeper(bench), (70_000,))
    assert one.run(task).reason is RunStopReason.SLEEPING
    assert (task.state, task.in_kernel, task.voluntary_switches) == (TaskState.SLEEPING, True, 1)
    with pytest.raises(MachineError, match="sleeping"):
        two.run(task)
    assert task.wake()
    assert not task.wake()
    assert two.run(task).value == 70_000 + 1000 + 5
    assert two.gs_base != one.gs_base


def test_calls_do_not_disturb_a_task_that_sleeps(bench):
    task = bench.machine.task("sleeper", sleeper(bench), (3,))
    bench.cpu.run(task)
    clobber = bench.place("mov rbx, -1\nmov r12, -1\npush -1\npop rax\nret")
    bench.cpu.call(clobber)
    task.wake()
    assert bench.cpu.run(task).value == 3


def test_what_sleeps_in_a_plain_call_is_woken_at_once(bench):
    bench.machine.write_u64(bench.cpu.gs_base + 0x10, 4)
    assert bench.cpu.call(sleeper(bench), 1).value == 9
    assert bench.cpu.idle.voluntary_switches == 1


@pytest.mark.parametrize("after", range(1, 9))
def test_migration_after_any_instruction(make, after):
    bench = make(vcpus=2)
    one, two = bench.machine.vcpus
    function = bench.place(RESULT)
    expected = one.call(function, 3, 4).value
    one.regs.rbx = two.regs.rbx = 0xBAD
    task = bench.machine.task("migrant", function, (3, 4))
    stop = one.run(task, preempt_after=after)
    if stop.reason is RunStopReason.PREEMPTED:
        assert (task.state, task.voluntary_switches) == (TaskState.RUNNABLE, 0)
        assert one.regs.rbx == 0xBAD
        stop = two.run(task)
    assert stop.value == expected
    assert (one.regs.rbx, two.regs.rbx) == (0xBAD, 0xBAD)


def test_preemption_after_n_instructions_is_exact(bench):
    function = bench.place("again:\ninc rax\njmp again")
    task = bench.machine.task("spinner", function)
    for n in (1, 2, 3, 100, 1):
        before = (task.register("rax"), task.register("rip") == function + 3)
        executed = before[0] * 2 - before[1] if task.in_kernel else 0
        assert bench.cpu.run(task, preempt_after=n).reason is RunStopReason.PREEMPTED
        executed += n
        assert task.register("rax") == (executed + 1) // 2


def test_preemption_by_request(bench):
    stub = bench.machine.host_call("resched", type(bench.cpu).preempt)
    task = bench.machine.task("polite", bench.place("call stub\nmov eax, 6\nret", stub=stub))
    assert bench.cpu.run(task).reason is RunStopReason.PREEMPTED
    assert (task.state, task.voluntary_switches) == (TaskState.RUNNABLE, 0)
    assert bench.cpu.run(task).value == 6


def test_a_task_whose_code_faults_is_done(bench):
    task = bench.machine.task("doomed", bench.place("mov rbx, 5\nud2"))
    with pytest.raises(GuestFault):
        bench.cpu.run(task)
    assert (task.state, task.in_kernel) == (TaskState.DONE, False)
    assert bench.cpu.task is bench.cpu.idle
    assert bench.cpu.regs.rbx == 0


def test_a_busy_vcpu_refuses_another_task(bench):
    other = bench.machine.task("other", bench.place("ret"))

    def run_other(vcpu):
        with pytest.raises(MachineError, match="is running"):
            vcpu.run(other)

    task = bench.machine.task("one", bench.place("jmp stub", stub=bench.machine.host_call("x", run_other)))
    bench.cpu.run(task)
    assert bench.cpu.run(other).reason is RunStopReason.RETURNED


def test_another_vcpu_may_run_while_a_host_call_is_under_way(make):
    bench = make(vcpus=2)
    add = bench.place("lock inc qword ptr [rdi]\nmov rax, qword ptr [rdi]\nret")
    two = bench.machine.vcpus[1]
    stub = bench.machine.host_call("other CPU", lambda vcpu: two.call(add, bench.data).value)
    outer = bench.place("push rdi\ncall add\ncall stub\npop rdi\nret", add=add, stub=stub)
    assert bench.cpu.call(outer, bench.data).value == 2


def test_stepping(bench):
    function = bench.place(RESULT)
    expected = bench.cpu.call(function, 1, 2).value
    task = bench.machine.task("stepped", function, (1, 2))
    bench.cpu.switch_to(task)
    assert bench.cpu.regs.rip == function
    seen = []
    while bench.cpu.step() is None:
        seen.append(bench.cpu.regs.rip - function)
    assert len(seen) == 8
    assert seen[:3] == [1, 4, 8]
    assert bench.cpu.regs.rax == expected


def test_several_steps_at_once(bench):
    task = bench.machine.task("stepped", bench.place("inc rax\ninc rax\ninc rax\nret"))
    bench.cpu.switch_to(task)
    assert bench.cpu.step(2) is None
    assert bench.cpu.regs.rax == 2
    assert bench.cpu.run(task).value == 3


def test_removing_a_task_frees_its_stack(bench):
    free = bench.machine.free_frames
    task = bench.machine.task("short-lived", bench.place("ret"))
    bench.cpu.run(task)
    bench.machine.remove_task(task)
    assert bench.machine.free_frames == free
    again = bench.machine.task("next", bench.text)
    assert again.stack_top == task.stack_top
    with pytest.raises(MachineError):
        bench.machine.remove_task(task)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 7)), max_size=30))
@settings(max_examples=30)
def test_property_any_schedule_gives_the_same_results(two_cpus, schedule):
    """Three tasks on two vCPUs, preempted anywhere: each computes what it would alone."""
    machine = two_cpus.machine
    function = two_cpus.place(RESULT, at=two_cpus.text)
    expected = [two_cpus.cpu.call(function, number, 7).value for number in range(3)]
    tasks = [machine.task(f"task {number}", function, (number, 7)) for number in range(3)]
    for number, cpu, instructions in schedule:
        if tasks[number].state is TaskState.RUNNABLE:
            machine.vcpus[cpu].run(tasks[number], preempt_after=instructions)
    for task in tasks:
        if task.state is TaskState.RUNNABLE:
            machine.vcpus[0].run(task)
    assert [task.value for task in tasks] == expected
    for task in tasks:
        machine.remove_task(task)
