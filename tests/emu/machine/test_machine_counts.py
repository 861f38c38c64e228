"""Counts of calls, by phase and by function."""

import pytest

from emu.counting import CountingError
from emu.errors import GuestFault
from emu.machine.machine import Machine

METHODS = ["native", "portable", "each"]


@pytest.fixture(params=METHODS)
def counted(make, request):
    return make(counting=request.param)


def test_phases_and_functions(counted):
    callee = counted.place("mov eax, 1\nret")
    image = counted.image(
        """
        .phase entry
        push rbx
        .phase program
        mov ecx, 5
        again:
        dec ecx
        jnz again
        .phase origin
        call callee
        .phase leave
        pop rbx
        ret
        """,
        callee=callee,
    )
    names = {image.address: "traced", callee: "callee"}
    counted.machine.symbolize = lambda address: names[callee if address < image.address else image.address]
    counts = counted.cpu.call(image.address).counts
    assert counts.by_phase == {"other": 2, "entry": 1, "program": 11, "origin": 1, "leave": 2}
    assert counts.by_function == {"callee": 2, "traced": 15}
    assert (counts.instructions, counts.unbalanced_returns) == (17, 0)
    assert counts.by_address[image.symbols["again"]] == 5


def test_a_host_call_counts_as_its_return(counted):
    stub = counted.machine.host_call("answer", lambda vcpu: 42)
    counts = counted.cpu.call(counted.place("call stub\nret", stub=stub)).counts
    assert (counts.instructions, counts.unbalanced_returns) == (3, 0)
    assert counts.by_function == {"answer": 1, "other": 2}


def test_nested_calls_count_in_the_outer_one(counted):
    inner = counted.place("nop1\nnop1\nret")
    seen = []

    def call_inner(vcpu):
        seen.append(vcpu.call(inner).counts)

    outer = counted.place("call stub\nret", stub=counted.machine.host_call("nest", call_inner))
    counts = counted.cpu.call(outer).counts
    assert (counts.instructions, counts.unbalanced_returns) == (6, 0)
    assert seen == [None]


def test_unbalanced_returns(counted):
    trick = counted.place("call next\nnext:\nlea rax, [rip + out]\nmov qword ptr [rsp], rax\nret\nout:\nret")
    # the first ret goes where no call came from, and the last one where the caller's entry says
    assert counted.cpu.call(trick).counts.unbalanced_returns == 1


def test_each_call_has_its_own_counts_however_late_they_are_read(counted):
    one, two = counted.place("nop1\nret"), counted.place("nop1\nnop1\nret")
    calls = [counted.cpu.call(function) for function in (one, two, one)]
    assert [call.counts.instructions for call in calls] == [2, 3, 2]


def test_counts_outlive_the_image_and_the_machine(counted):
    image = counted.image(".phase save\nnop1\n.phase leave\nret")
    call = counted.cpu.call(image.address)
    counted.machine.remove_image(image.address)
    counted.machine.poison(image.address, len(image), "image")
    counted.machine.close()
    assert call.counts.by_phase == {"save": 1, "leave": 1}


def test_a_faulting_instruction_is_not_counted(counted):
    function = counted.place("nop1\nnop1\nmov rax, qword ptr [rdi]\nret")
    with pytest.raises(GuestFault):
        counted.cpu.call(function, 0)
    assert counted.cpu.counts().instructions == 2


def test_patched_code_is_counted_as_what_ran(make):
    """A view, stale or not, is what instructions are told from."""
    bench = make(vcpus=2)
    function = bench.place("nop5\nnop5\nret")
    assert bench.cpu.call(function).counts.instructions == 3
    bench.machine.write_text(function, b"\x90" * 5)
    for cpu, expected in zip(bench.machine.vcpus, (3, 7), strict=True):
        if cpu.index:
            cpu.serialize()
        assert cpu.call(function).counts.instructions == expected
    bench.cpu.see_new(function)
    assert bench.cpu.call(function).counts.instructions == 7
    call = bench.cpu.call(function)
    bench.machine.load(function, b"\xc3" * 11)
    assert call.counts.instructions == 7
    assert bench.cpu.call(function).counts.instructions == 1


def test_tasks_are_counted_across_runs(counted):
    function = counted.place("mov ecx, 3\nagain:\ndec ecx\njnz again\nret")
    task = counted.machine.task("counted", function)
    counted.cpu.reset_counts()
    for _ in range(3):
        counted.cpu.run(task, preempt_after=2)
    counted.cpu.run(task)
    assert counted.cpu.counts().instructions == 8
    assert counted.cpu.counts().unbalanced_returns == 0


def test_counts_after_a_restore_are_of_the_text_that_runs(bench):
    function = bench.place("nop5\nret")
    snapshot = bench.machine.snapshot()
    bench.machine.write_text(function, b"\x90" * 5)
    bench.cpu.serialize()
    assert bench.cpu.call(function).counts.instructions == 6
    bench.machine.restore(snapshot)
    assert bench.cpu.call(function).counts.instructions == 2


def test_counting_can_be_off(make):
    bench = make(counting="off")
    assert bench.cpu.call(bench.place("ret")).counts is None
    assert bench.cpu.counts() is None
    with pytest.raises(CountingError):
        Machine(counting="abacus")


def test_limits_do_not_change_counts(counted):
    function = counted.place("mov ecx, 7\nagain:\ndec ecx\njnz again\nret")
    plain = counted.cpu.call(function).counts
    assert counted.cpu.call(function, max_instructions=1000).counts == plain
    assert counted.cpu.call(function).counts == plain
