"""What a vCPU executes while writes to text are pending, and when it adopts them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asm import NOP5, call_rel32
from emu.errors import GuestFault, MachineError, NotMapped
from emu.machine.machine import Prot

PAGE = 4096


def values(bench, *functions):
    """What each function returns on each vCPU."""
    return [[cpu.call(function).value for function in functions] for cpu in bench.machine.vcpus]


def poke(bench, function, value):
    """Patch the constant that a function returns."""
    bench.machine.write_text(function + 1, bytes((value,)))


@pytest.fixture(params=[False, True], ids=["never executed", "executed before"])
def one_function(make, request):
    """Two vCPUs and a function that returns 1; staleness must not depend on what ran before."""
    bench = make(vcpus=2)
    function = bench.place("mov eax, 1\nret")
    if request.param:
        assert values(bench, function) == [[1], [1]]
    return bench, function


def test_old_bytes_are_the_default(one_function):
    bench, function = one_function
    poke(bench, function, 2)
    assert values(bench, function) == [[1], [1]]
    assert bench.machine.read(function + 1, 1) == b"\x02"


def test_serialising_adopts_on_that_vcpu_only(one_function):
    bench, function = one_function
    poke(bench, function, 2)
    bench.machine.vcpus[1].serialize()
    assert values(bench, function) == [[1], [2]]
    bench.machine.vcpus[0].serialize()
    assert values(bench, function) == [[2], [2]]


def test_seeing_new_bytes_is_a_choice_of_each_vcpu(one_function):
    bench, function = one_function
    poke(bench, function, 2)
    bench.machine.vcpus[0].see_new(function + 1)
    assert values(bench, function) == [[2], [1]]
    assert [len(cpu.pending()) for cpu in bench.machine.vcpus] == [1, 1]
    for cpu in bench.machine.vcpus:
        cpu.serialize()
    assert values(bench, function) == [[2], [2]]
    assert [cpu.pending() for cpu in bench.machine.vcpus] == [[], []]


def test_the_choice_may_come_after_running_on_old_bytes(one_function):
    bench, function = one_function
    poke(bench, function, 2)
    assert values(bench, function) == [[1], [1]]
    bench.machine.vcpus[1].see_new(function + 1)
    assert values(bench, function) == [[1], [2]]


def test_see_new_needs_a_pending_write(one_function):
    bench, function = one_function
    with pytest.raises(MachineError, match="pending"):
        bench.cpu.see_new(function)
    poke(bench, function, 2)
    with pytest.raises(MachineError, match="pending"):
        bench.cpu.see_new(function)


def test_later_writes_are_pending_again(one_function):
    bench, function = one_function
    poke(bench, function, 2)
    bench.cpu.see_new(function + 1)
    poke(bench, function, 3)
    assert values(bench, function) == [[2], [1]]
    bench.cpu.see_new(function + 1)
    assert values(bench, function) == [[3], [1]]
    poke(bench, function, 1)
    bench.cpu.serialize()
    assert values(bench, function) == [[1], [1]]


def test_old_and_new_sites_in_one_page(make):
    bench = make(vcpus=2)
    functions = [bench.place(f"mov eax, {number}\nret") for number in range(4)]
    for number, function in enumerate(functions):
        poke(bench, function, 10 + number)
    one, two = bench.machine.vcpus
    one.see_new(functions[1] + 1)
    one.see_new(functions[3] + 1)
    two.see_new(functions[0] + 1)
    assert values(bench, *functions) == [[0, 11, 2, 13], [10, 1, 2, 3]]
    two.serialize()
    assert values(bench, *functions) == [[0, 11, 2, 13], [10, 11, 12, 13]]


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_site_that_crosses_a_page(make, cut):
    bench = make(vcpus=2)
    two, target = bench.machine.vcpus[1], bench.place("mov eax, 9\nret")
    site = bench.text + PAGE - cut
    bench.machine.load(site, NOP5 + b"\xb0\x07\xc3")
    caller = bench.place("xor eax, eax\njmp site", site=site)
    assert values(bench, caller) == [[7], [7]]
    bench.machine.write_text(site, call_rel32(site, target) + b"\xc3")
    assert values(bench, caller) == [[7], [7]]
    two.see_new(site + 4)
    assert values(bench, caller) == [[7], [9]]
    bench.cpu.serialize()
    assert values(bench, caller) == [[9], [9]]


def test_each_phase_of_a_poke_is_visible_where_chosen(make):
    """int3, tail, first byte: a vCPU may lag behind by any number of phases."""
    bench = make(vcpus=3)
    target = bench.place("mov eax, 9\nret")
    site = bench.place("nop5\nret")
    call = call_rel32(site, target)
    bench.machine.on_int3.append(lambda vcpu: bool(setattr(vcpu.regs, "rax", 3)) or bool(vcpu.regs.rip))
    old, trapped, new = bench.machine.vcpus

    def seen():
        for cpu in bench.machine.vcpus:
            cpu.regs.rax = 1
        return [cpu.read_code(site, 5) for cpu in bench.machine.vcpus]

    bench.machine.write_text(site, b"\xcc")
    trapped.see_new(site)
    new.serialize()
    assert seen() == [NOP5, b"\xcc" + NOP5[1:], b"\xcc" + NOP5[1:]]
    bench.machine.write_text(site + 1, call[1:])
    new.serialize()
    assert seen() == [NOP5, b"\xcc" + NOP5[1:], b"\xcc" + call[1:]]
    bench.machine.write_text(site, call[:1])
    assert seen() == [NOP5, b"\xcc" + NOP5[1:], b"\xcc" + call[1:]]
    new.serialize()
    assert seen() == [NOP5, b"\xcc" + NOP5[1:], call]
    assert old.call(site).value == 1
    assert new.call(site).value == 9
    trapped.serialize()
    old.serialize()
    assert seen() == [call, call, call]


def test_a_private_view_does_not_hide_data_in_the_same_tables(make):
    """Data whose page table is copied for a view stays shared, and the guest's writes to it are not lost on a reset."""
    bench = make(vcpus=2)
    data = bench.text + 0x100000
    from emu.machine.machine import Prot

    bench.machine.map(data, PAGE, Prot.READ | Prot.WRITE)
    store = bench.place("mov qword ptr [rdi], rsi\nmov rax, qword ptr [rdi]\nret")
    snapshot = bench.machine.snapshot()
    bench.machine.write_text(store + 6, b"\x90")
    assert bench.cpu.call(store, data, 5).value == 5
    assert bench.machine.read_u64(data) == 5
    bench.machine.restore(snapshot)
    assert bench.machine.read_u64(data) == 0


def test_mappings_made_while_writes_are_pending_are_seen(make):
    from emu.machine.machine import Prot

    bench = make(vcpus=2)
    load = bench.place("mov rax, qword ptr [rdi]\nret")
    function = bench.place("mov eax, 1\nret")
    poke(bench, function, 2)
    assert values(bench, function) == [[1], [1]]
    near, far = bench.text + 0x100000, 0xFFFFB00000000000
    for address in (near, far):
        bench.machine.map(address, PAGE, Prot.READ | Prot.WRITE)
        bench.machine.write_u64(address, 8)
        assert bench.cpu.call(load, address).value == 8
        bench.machine.unmap(address, PAGE)
        with pytest.raises(GuestFault):
            bench.cpu.call(load, address)
    assert values(bench, function) == [[1], [1]]


def test_nothing_is_copied_while_nothing_runs(bench):
    functions = [bench.place(f"mov eax, {number}\nret") for number in range(100)]
    taken = bench.machine.view_frames.in_use
    for function in functions:
        poke(bench, function, 77)
    bench.cpu.serialize()
    assert values(bench, *functions) == [[77] * 100]
    poke(bench, functions[0], 78)
    assert bench.machine.view_frames.in_use == taken
    assert values(bench, *functions) == [[0x4D] * 100]
    assert bench.machine.view_frames.in_use == taken + 4
    bench.cpu.serialize()
    assert values(bench, functions[0]) == [[78]]
    assert bench.machine.view_frames.in_use == taken


def test_patching_the_block_that_is_running_takes_effect_at_the_next_instruction(bench):
    """A host call writes ahead of itself: with serialising the new bytes run, without the old."""
    site = bench.text + 0x2000

    def patch(vcpu):
        bench.machine.write_text(site + 6, bytes((vcpu.regs.rdi & 0xFF,)))
        if vcpu.regs.rsi:
            vcpu.serialize()

    stub = bench.machine.host_call("patch", patch)
    bench.place("call stub\nmov eax, 1\nret", at=site, stub=stub)
    assert bench.cpu.call(site, 5, 0).value == 1
    assert bench.cpu.call(site, 6, 1).value == 6


def test_loading_over_a_pending_write_wins(make):
    bench = make(vcpus=2)
    function = bench.place("mov eax, 1\nret")
    poke(bench, function, 2)
    assert values(bench, function) == [[1], [1]]
    bench.machine.load(function, bench.constant(function, 5))
    assert values(bench, function) == [[5], [5]]
    assert bench.cpu.pending() == []


def test_writing_what_is_there_is_no_write(bench):
    function = bench.place("mov eax, 1\nret")
    poke(bench, function, 1)
    assert bench.cpu.pending() == []


SITES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 11), st.binary(min_size=1, max_size=5)),
        st.tuples(st.just("see"), st.integers(0, 1), st.integers(0, 15)),
        st.tuples(st.just("serialize"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("run"), st.integers(0, 1), st.just(0)),
    ),
    max_size=25,
)


@given(SITES)
@settings(max_examples=60)
def test_property_views_agree_with_a_model(two_cpus, steps):
    """Overlapping writes around a page boundary, seen or not: each vCPU's view is base plus what it sees, in order.

    The sites are immediates of instructions that add them up, so that running tells which bytes were executed.
    """
    machine = two_cpus.machine
    # sixteen times add al, imm8
    start = two_cpus.text + 2 * PAGE - 16
    machine.load(start - 3, b"\x31\xc0\x90" + b"\x04\x00" * 16 + b"\x0f\xb6\xc0\xc3")
    immediates = [start + 1 + 2 * number for number in range(16)]
    pending = {cpu.index: [] for cpu in machine.vcpus}
    base = {cpu.index: dict.fromkeys(range(16), 0) for cpu in machine.vcpus}
    shared = dict.fromkeys(range(16), 0)

    def view(index):
        now = dict(base[index])
        for write, seen in pending[index]:
            if seen:
                now.update(write)
        return now

    for what, first, second in steps:
        if what == "write":
            # one write to text covers opcodes and immediates
            data = b"".join(bytes((value, 0x04)) for value in second)[:-1]
            write = {first + at: value for at, value in enumerate(second) if first + at < 16}
            if all(shared[at] == value for at, value in write.items()) or first + len(second) > 16:
                continue
            shared.update(write)
            machine.write_text(immediates[first], data)
            for writes in pending.values():
                writes.append([write, False])
        elif what == "see" and any(second in write for write, _ in pending[first]):
            machine.vcpus[first].see_new(immediates[second])
            for entry in pending[first]:
                entry[1] = entry[1] or second in entry[0]
        elif what == "serialize":
            machine.vcpus[first].serialize()
            base[first], pending[first] = dict(shared), []
        elif what == "run":
            expected = sum(view(first).values()) & 0xFF
            assert machine.vcpus[first].call(start - 3).value == expected
            for number, address in enumerate(immediates):
                assert machine.vcpus[first].read_code(address, 1)[0] == view(first)[number]
    for cpu in machine.vcpus:
        cpu.serialize()
        assert cpu.call(start - 3).value == sum(shared.values()) & 0xFF


WRITES = {
    8: b"\x90" * 4,
    PAGE - 3: b"\x01\x02\x03\x04\x05",
    PAGE + 100: b"\xcc",
    # As it is already, and two that overlap.
    PAGE + 200: b"\x00",
    2 * PAGE + 7: b"\x0f\x0b",
    2 * PAGE + 8: b"\x0e",
}


@pytest.mark.parametrize("contiguous", [True, False])
def test_several_writes_at_once_are_as_one_after_the_other(make, contiguous):
    seen = []
    for at_once in (True, False):
        bench = make(vcpus=2)
        machine = bench.machine
        if not contiguous:
            # The second page in a frame that is not beside the first one's.
            machine.unmap(bench.text, 2 * PAGE)
            for page in (1, 0):
                machine.map(bench.text + page * PAGE, PAGE, Prot.READ | Prot.EXEC)
        machine.snapshot()
        addresses = [bench.text + offset for offset in WRITES]
        old = [machine.read(address, len(text)) for address, text in zip(addresses, WRITES.values(), strict=True)]
        old[-1] = b"\x0b"
        if at_once:
            assert machine.write_texts(addresses, list(WRITES.values())) == old
        else:
            for address, text in zip(addresses, WRITES.values(), strict=True):
                machine.write_text(address, text)
        views = [vcpu.read_code(bench.text, 3 * PAGE) for vcpu in machine.vcpus]
        machine.vcpus[1].see_new(addresses[1])
        machine.vcpus[1].see_new(addresses[-1])
        views.append(machine.vcpus[1].read_code(bench.text, 3 * PAGE))
        pending = [vcpu.pending() for vcpu in machine.vcpus]
        assert [write.address for write in pending[0]] == [address for address in addresses if address != addresses[3]]
        machine.snapshot()
        seen.append((machine.read(bench.text, 3 * PAGE), views, pending, machine.pages_copied))
    assert seen[0] == seen[1]


def test_one_write_that_is_refused_keeps_all_from_being_made(bench):
    machine = bench.machine
    for bad, error in ((bench.data, MachineError), (bench.text - 3, NotMapped)):
        with pytest.raises(error):
            machine.write_texts([bench.text, bad], [b"\x90", b"\x90" * 5])
        assert machine.read(bench.text, 1) == b"\x00"
        assert bench.cpu.pending() == []
    machine.write_texts([], [])
    with pytest.raises(ValueError, match="shorter"):
        machine.write_texts([bench.text], [])
