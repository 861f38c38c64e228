"""Snapshots: what they restore, and what that costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asm import assemble
from emu.errors import GuestFault, MachineError
from emu.machine.machine import Machine, Prot
from emu.machine.task import TaskState

RW, RX = Prot.READ | Prot.WRITE, Prot.READ | Prot.EXEC
HERE = 0xFFFFC90020000000
STORE = "mov qword ptr [rdi], rsi\nret"


def test_guest_and_host_writes_are_undone(bench):
    store = bench.place(STORE)
    bench.machine.write_u64(bench.data, 1)
    snapshot = bench.machine.snapshot()
    bench.cpu.call(store, bench.data, 2)
    bench.machine.write_u64(bench.data + 4096, 3)
    bench.cpu.call(store, bench.data + 8192, 4)
    bench.machine.restore(snapshot)
    assert [bench.machine.read_u64(bench.data + page * 4096) for page in range(3)] == [1, 0, 0]
    bench.cpu.call(store, bench.data, 5)
    bench.machine.restore(snapshot)
    assert bench.machine.read_u64(bench.data) == 1


@pytest.mark.parametrize("pages", [0, 1, 3, 17])
def test_a_restore_copies_the_pages_that_were_written(make, pages):
    bench = make(ram_bytes=16 << 20)
    store = bench.place(STORE)
    bench.machine.map(HERE, 2048 * 4096, RW)
    for page in range(0, 2048, 7):
        bench.machine.write_u64(HERE + page * 4096, page)
    bench.cpu.call(store, HERE, 0)
    snapshot = bench.machine.snapshot()
    for page in range(pages):
        bench.cpu.call(store, HERE + page * 100 * 4096, 99)
    bench.machine.restore(snapshot)
    stack = 1 if pages else 0  # the return address was there before, but not by that call
    assert pages <= bench.machine.pages_copied <= pages + stack
    assert bench.machine.read_u64(HERE) == 0
    bench.machine.restore(snapshot)
    assert bench.machine.pages_copied == 0
    bench.machine.snapshot()
    assert bench.machine.pages_copied == 0


def test_a_second_snapshot_copies_what_changed_since_the_first(bench):
    bench.machine.snapshot()
    bench.machine.write_u64(bench.data, 1)
    bench.machine.snapshot()
    assert bench.machine.pages_copied == 1


def test_older_newer_and_sideways(bench):
    machine, data = bench.machine, bench.data
    states = {}
    machine.write_u64(data, 1)
    states["a"] = machine.snapshot()
    machine.write_u64(data + 4096, 2)
    states["ab"] = machine.snapshot()
    machine.write_u64(data, 3)
    states["abc"] = machine.snapshot()
    machine.restore(states["a"])
    machine.write_u64(data + 8192, 4)
    states["ad"] = machine.snapshot()
    expected = {"a": [1, 0, 0], "ab": [1, 2, 0], "abc": [3, 2, 0], "ad": [1, 0, 4]}
    for name in ("abc", "ad", "a", "abc", "ab", "ad", "ab", "a"):
        machine.restore(states[name])
        assert [machine.read_u64(data + page * 4096) for page in range(3)] == expected[name]
        machine.write_u64(data + 4096, 77)


def test_mappings_and_frames_come_back(bench):
    machine = bench.machine
    load = bench.place("mov rax, qword ptr [rdi]\nret")
    machine.write_u64(bench.data, 6)
    free = machine.free_frames
    snapshot = machine.snapshot()
    machine.map(HERE, 4096, RW)
    machine.write_u64(HERE, 1)
    machine.unmap(bench.data, 4096)
    machine.protect(bench.data + 4096, 4096, Prot.READ)
    bench.cpu.call(load, HERE)
    machine.restore(snapshot)
    assert machine.free_frames == free
    assert bench.cpu.call(load, bench.data).value == 6
    assert not machine.is_mapped(HERE)
    with pytest.raises(GuestFault):
        bench.cpu.call(load, HERE)
    bench.cpu.call(bench.place(STORE), bench.data + 4096, 1)
    machine.map(HERE, 4096, RW)
    assert machine.read(HERE, 4096) == bytes(4096)


def test_what_was_mapped_after_the_snapshot_is_there_again_later(bench):
    machine = bench.machine
    before = machine.snapshot()
    machine.map(HERE, 8192, RX)
    machine.load(HERE, bench.constant(HERE, 4))
    after = machine.snapshot()
    for _ in range(2):
        machine.restore(before)
        assert not machine.is_mapped(HERE)
        machine.restore(after)
        assert bench.cpu.call(HERE).value == 4


def test_text_comes_back_for_every_vcpu(make):
    bench = make(vcpus=2)
    machine = bench.machine
    function = bench.place("mov eax, 1\nret")
    snapshot = machine.snapshot()
    for value in (2, 3):
        machine.write_text(function + 1, bytes((value,)))
        for cpu in machine.vcpus:
            cpu.serialize()
            assert cpu.call(function).value == value
        machine.restore(snapshot)
        assert [cpu.call(function).value for cpu in machine.vcpus] == [1, 1]


def test_pending_text_comes_back_with_each_vcpus_choice(make):
    bench = make(vcpus=2)
    machine = bench.machine
    one, two = machine.vcpus
    function = bench.place("mov eax, 1\nret")
    machine.write_text(function + 1, b"\x02")
    two.see_new(function + 1)
    snapshot = machine.snapshot()
    assert [cpu.call(function).value for cpu in machine.vcpus] == [1, 2]
    one.serialize()
    machine.write_text(function + 1, b"\x03")
    two.serialize()
    assert [cpu.call(function).value for cpu in machine.vcpus] == [2, 3]
    machine.restore(snapshot)
    assert [cpu.call(function).value for cpu in machine.vcpus] == [1, 2]
    one.serialize()
    assert [cpu.call(function).value for cpu in machine.vcpus] == [2, 2]


def test_frames_that_were_text_elsewhere_are_not_executed_from_memory_of_it(bench):
    """The frame behind an address changes twice by restores, while the engine remembers its code."""
    machine = bench.machine
    empty = machine.snapshot()
    machine.map(HERE, 4096, RX)
    machine.load(HERE, bench.constant(HERE, 1))
    first = machine.snapshot()
    assert bench.cpu.call(HERE).value == 1
    machine.restore(empty)
    machine.map(HERE + 0x100000, 4096, RW)  # takes the frame
    machine.map(HERE, 4096, RX)
    machine.load(HERE, bench.constant(HERE, 2))
    second = machine.snapshot()
    for snapshot, value in ((second, 2), (first, 1), (second, 2), (first, 1)):
        machine.restore(snapshot)
        assert bench.cpu.call(HERE).value == value


def test_registers_tasks_and_names_come_back(bench):
    machine = bench.machine
    stub = machine.host_call("schedule", type(bench.cpu).sleep)
    task = machine.task("sleeper", bench.place("mov rbx, 5\ncall stub\nlea rax, [rbx + 1]\nret", stub=stub))
    bench.cpu.run(task)
    bench.cpu.regs.r15 = 0x15
    machine.poison(bench.text + 4096, 16, "gone")
    snapshot = machine.snapshot()
    tasks = list(machine.tasks)
    bench.cpu.regs.r15 = 0
    task.wake()
    assert bench.cpu.run(task).value == 6
    machine.task("another", bench.text)
    machine.load(bench.text + 4096, bench.constant(0, 1))
    machine.restore(snapshot)
    assert (task.state, machine.tasks, bench.cpu.regs.r15) == (TaskState.SLEEPING, tasks, 0x15)
    with pytest.raises(GuestFault, match="gone was freed"):
        bench.cpu.call(bench.text + 4096)
    machine.restore(snapshot)
    task.wake()
    assert bench.cpu.run(task).value == 6
    assert machine.task("another", bench.text).stack_top == task.stack_top + 5 * 4096


def test_foreign_snapshots_and_running_vcpus_are_refused(make):
    bench, other = make(), make()
    with pytest.raises(MachineError, match="another machine"):
        bench.machine.restore(other.machine.snapshot())

    def snapshot_inside(vcpu):
        with pytest.raises(MachineError, match="running"):
            bench.machine.snapshot()

    bench.cpu.call(bench.machine.host_call("snapshot", snapshot_inside))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["host", "guest"]), st.integers(0, 3), st.integers(1, 255)),
        st.tuples(st.just("map"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("unmap"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("text"), st.integers(0, 1), st.integers(1, 255)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 5), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=40)
def test_property_any_path_between_snapshots_leads_to_the_same_state(steps):
    """Writes, mappings and patches, snapshots and restores in any order agree with a model that copies everything."""
    with Machine(ram_bytes=1 << 20, counting="off") as machine:
        text, data = machine.layout.text, machine.layout.direct_map
        cpu = machine.vcpus[0]
        machine.map(text, 4096, RX)
        machine.map(data, 4 * 4096, RW)
        store = text + 64
        machine.load(store, assemble("mov byte ptr [rdi], sil\nret").code)
        machine.load(text, assemble("mov eax, 0\nret").code + assemble(".align 16").code)
        machine.load(text + 16, assemble("mov eax, 0\nret").code)
        state = {"data": [0] * 4, "maps": {}, "text": [0, 0]}
        saved = []

        def copy():
            return {"data": list(state["data"]), "maps": dict(state["maps"]), "text": list(state["text"])}

        for what, first, second in steps:
            address = HERE + first * 0x200000
            if what == "host":
                machine.write_u8(data + first * 4096, second)
                state["data"][first] = second
            elif what == "guest":
                cpu.call(store, data + first * 4096, second)
                state["data"][first] = second
            elif what == "map" and first not in state["maps"]:
                machine.map(address, 4096, RW)
                cpu.call(store, address, 0x11 * (first + 1))
                state["maps"][first] = 0x11 * (first + 1)
            elif what == "unmap" and first in state["maps"]:
                machine.unmap(address, 4096)
                del state["maps"][first]
            elif what == "text":
                machine.write_text(text + 16 * first + 1, bytes((second,)))
                cpu.serialize()
                state["text"][first] = second
            elif what == "snapshot":
                saved.append((machine.snapshot(), copy()))
            elif what == "restore" and saved:
                snapshot, state = saved[first % len(saved)]
                machine.restore(snapshot)
                state = copy()
            assert [machine.read_u8(data + page * 4096) for page in range(4)] == state["data"]
            for number in range(3):
                where = HERE + number * 0x200000
                assert machine.is_mapped(where) == (number in state["maps"])
                if number in state["maps"]:
                    assert machine.read_u8(where) == state["maps"][number]
            assert [cpu.call(text + 16 * number).value for number in range(2)] == state["text"]
