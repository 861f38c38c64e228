"""Mappings, protection, RAM shared by vCPUs, frames."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.errors import GuestFault, MachineError, NotMapped, OutOfMemory, TextWriteError
from emu.machine.address_map import AddressMap
from emu.machine.machine import Machine, Prot

RW, RX = Prot.READ | Prot.WRITE, Prot.READ | Prot.EXEC
HERE = 0xFFFFC90010000000


def test_memory_starts_zeroed_and_keeps_what_is_written(bench):
    machine = bench.machine
    assert machine.read(bench.data, 8192) == bytes(8192)
    machine.write(bench.data + 4090, b"across a page")
    assert machine.read(bench.data + 4090, 13) == b"across a page"
    machine.write_u16(bench.data, 0x1FFFF)
    machine.write_u32(bench.data + 8, -1)
    machine.write_u64(bench.data + 16, (1 << 64) + 5)
    machine.write_u8(bench.data + 24, 0x1FF)
    assert machine.read_u16(bench.data) == 0xFFFF
    assert machine.read_u32(bench.data + 8) == 0xFFFFFFFF
    assert machine.read_u64(bench.data + 16) == 5
    assert machine.read_u8(bench.data + 24) == 0xFF


def test_reused_frames_are_zeroed(bench):
    machine = bench.machine
    machine.map(HERE, 4096, RW)
    machine.write(HERE, b"x" * 4096)
    machine.unmap(HERE, 4096)
    machine.map(HERE, 4096, RW)
    assert machine.read(HERE, 4096) == bytes(4096)


def test_unmap_gives_every_frame_back_tables_included(bench):
    machine = bench.machine
    before = machine.free_frames
    machine.map(HERE, 600 * 4096, RW)
    assert machine.free_frames < before - 600
    machine.unmap(HERE, 600 * 4096)
    assert machine.free_frames == before


@pytest.mark.parametrize(
    ("address", "size"), [(HERE + 1, 4096), (HERE, 100), (HERE, 0), (0x0000_8000_0000_0000, 4096), (1 << 64, 4096)]
)
def test_bad_ranges_are_refused(bench, address, size):
    with pytest.raises(MachineError):
        bench.machine.map(address, size, RW)
    assert not bench.machine.is_mapped(address)


def test_overlaps_are_refused_and_change_nothing(bench):
    machine = bench.machine
    machine.map(HERE + 4096, 4096, RW)
    free = machine.free_frames
    with pytest.raises(MachineError, match="mapped already"):
        machine.map(HERE, 3 * 4096, RW)
    assert not machine.is_mapped(HERE)
    assert machine.free_frames == free


def test_out_of_memory_leaves_nothing_behind(bench):
    machine = bench.machine
    free = machine.free_frames
    with pytest.raises(OutOfMemory) as caught:
        machine.map(HERE, (free - 1) * 4096, RW)
    assert caught.value.errno == errno.ENOMEM
    assert machine.free_frames == free
    assert not machine.is_mapped(HERE)
    machine.map(HERE, (free - 10) * 4096, RW)
    assert machine.read_u64(HERE + (free - 11) * 4096) == 0


def test_what_is_not_mapped_is_named(bench):
    with pytest.raises(NotMapped) as caught:
        bench.machine.read(bench.data + 4 * 4096 - 2, 4)
    assert caught.value.address == bench.data + 4 * 4096
    with pytest.raises(NotMapped):
        bench.machine.read(1 << 60, 1)
    with pytest.raises(NotMapped):
        bench.machine.unmap(bench.data + 3 * 4096, 2 * 4096)
    assert bench.machine.is_mapped(bench.data + 3 * 4096)


def test_a_write_that_hits_a_hole_writes_nothing(bench):
    with pytest.raises(NotMapped):
        bench.machine.write(bench.data + 4 * 4096 - 2, b"four")
    assert bench.machine.read(bench.data + 4 * 4096 - 2, 2) == bytes(2)


def test_aliases_share_frames_until_the_last_one_goes(bench):
    machine = bench.machine
    before = machine.free_frames
    machine.alias(HERE, 4096, RW, bench.data)
    machine.write_u64(HERE, 7)
    assert machine.read_u64(bench.data) == 7
    machine.unmap(bench.data, 4096)
    assert machine.read_u64(HERE) == 7
    machine.unmap(HERE, 4096)
    assert machine.free_frames == before + 1


def test_guest_and_host_see_each_other_through_an_alias(bench):
    bench.machine.alias(HERE, 4096, RW, bench.data)
    store = bench.place("mov qword ptr [rdi], rsi\nmov rax, qword ptr [rdx]\nret")
    assert bench.cpu.call(store, HERE + 8, 99, bench.data + 8).value == 99
    assert bench.machine.read_u64(bench.data + 8) == 99


def test_data_is_never_executed(bench):
    bench.machine.write(bench.data, bench.constant(0, 1))
    with pytest.raises(GuestFault) as caught:
        bench.cpu.call(bench.data)
    assert (caught.value.kind, caught.value.access, caught.value.address) == ("page fault", "fetch", bench.data)


def test_text_is_read_only_for_the_guest(bench):
    store = bench.place("mov byte ptr [rdi], 0\nret")
    with pytest.raises(GuestFault) as caught:
        bench.cpu.call(store, bench.text)
    assert (caught.value.kind, caught.value.access, caught.value.address) == ("page fault", "write", bench.text)


def test_text_is_patched_by_write_text_only(bench):
    bench.machine.alias(HERE, 4096, RW, bench.text)
    for address in (bench.text, HERE):
        with pytest.raises(TextWriteError):
            bench.machine.write(address, b"\x90")
    with pytest.raises(TextWriteError):
        bench.machine.write(bench.text - 0, b"\x90" * 5000)
    with pytest.raises(MachineError, match="not text"):
        bench.machine.write_text(bench.data, b"\x90")
    with pytest.raises(NotMapped):
        bench.machine.write_text(HERE + 4096, b"\x90")


def test_guest_stores_through_an_alias_of_text_reach_every_vcpu(make):
    bench = make(vcpus=2)
    machine = bench.machine
    one, two = machine.vcpus
    machine.alias(HERE, 4096, RW, bench.text)
    function = bench.place("mov eax, 1\nret")
    poke = bench.place("mov byte ptr [rdi], sil\nret")
    assert [cpu.call(function).value for cpu in (one, two)] == [1, 1]
    for value in (2, 3):
        one.call(poke, HERE + 1 + function - bench.text, value)
        assert [cpu.call(function).value for cpu in (one, two)] == [value, value]


def test_protect_takes_effect_at_once(bench):
    store = bench.place("mov byte ptr [rdi], 1\nret")
    bench.cpu.call(store, bench.data)
    bench.machine.protect(bench.data, 4096, Prot.READ)
    with pytest.raises(GuestFault):
        bench.cpu.call(store, bench.data)
    bench.machine.protect(bench.data, 4096, RW)
    bench.cpu.call(store, bench.data)


def test_memory_that_becomes_executable_runs(bench):
    bench.machine.write(bench.data, bench.constant(0, 5))
    bench.machine.protect(bench.data, 4096, RX)
    assert bench.cpu.call(bench.data).value == 5
    with pytest.raises(TextWriteError):
        bench.machine.write(bench.data, b"\x90")


def test_unmapped_memory_is_gone_for_a_vcpu_that_used_it(bench):
    bench.machine.map(HERE, 4096, RW)
    load = bench.place("mov rax, qword ptr [rdi]\nret")
    bench.cpu.call(load, HERE)
    bench.machine.unmap(HERE, 4096)
    with pytest.raises(GuestFault) as caught:
        bench.cpu.call(load, HERE)
    assert caught.value.access == "read"


def test_remapped_text_is_not_executed_from_memory_of_what_was_there(bench):
    machine = bench.machine
    for value in range(1, 5):
        machine.map(HERE, 4096, RX)
        machine.load(HERE, bench.constant(HERE, value))
        assert bench.cpu.call(HERE).value == value
        machine.unmap(HERE, 4096)
        machine.map(HERE + 0x10000 * value, 4096, RW)  # another use for the frame


def test_vcpus_share_ram(make):
    bench = make(vcpus=3)
    add = bench.place("lock add qword ptr [rdi], rsi\nret")
    for cpu in bench.machine.vcpus:
        cpu.call(add, bench.data, 10 + cpu.index)
    assert bench.machine.read_u64(bench.data) == 33


def test_gs_is_per_cpu(make):
    bench = make(vcpus=2)
    swap = bench.place("mov rax, qword ptr gs:[0x10]\nmov qword ptr gs:[0x10], rdi\nret")
    for cpu in bench.machine.vcpus:
        bench.machine.write_u64(cpu.gs_base + 0x10, 100 + cpu.index)
    assert [cpu.call(swap, 7).value for cpu in bench.machine.vcpus] == [100, 101]
    assert [bench.machine.read_u64(cpu.gs_base + 0x10) for cpu in bench.machine.vcpus] == [7, 7]


def test_a_machine_lies_where_its_layout_says():
    shift = 0x2A00000
    layout = AddressMap(
        text=0xFFFFFFFF81000000 + shift,
        direct_map=0xFFFF99B340000000,
        host_calls=0xFFFFFFFFBF000000 + shift,
        stacks=0xFFFFA10000000000,
    )
    with Machine(layout, ram_bytes=1 << 20) as machine:
        machine.map(layout.text, 4096, RX)
        answer = machine.host_call("answer", lambda vcpu: 42)
        machine.load(layout.text, b"\xe8" + (answer - layout.text - 5).to_bytes(4, "little", signed=True) + b"\xc3")
        assert machine.vcpus[0].call(layout.text).value == 42
        assert not machine.is_mapped(AddressMap().stacks)


@pytest.mark.parametrize("options", [{"vcpus": 0}, {"ram_bytes": 4096}])
def test_impossible_machines_are_refused(options):
    with pytest.raises(MachineError):
        Machine(**options)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.booleans()), max_size=25))
def test_property_mappings_agree_with_a_model(steps):
    """Maps and unmaps in any order: what is mapped, what is free, and refusals are those of a set of page numbers."""
    with Machine(ram_bytes=1 << 20, counting="off") as machine:
        free, mapped = machine.free_frames, set()
        for first, count, fresh in steps:
            pages = set(range(first, first + count))
            address, size = HERE + first * 4096, count * 4096
            if fresh and pages & mapped:
                with pytest.raises(MachineError):
                    machine.map(address, size, RW)
            elif fresh:
                machine.map(address, size, RW)
                mapped |= pages
            elif pages <= mapped:
                machine.unmap(address, size)
                mapped -= pages
            else:
                with pytest.raises(NotMapped):
                    machine.unmap(address, size)
            assert {page for page in range(20) if machine.is_mapped(HERE + page * 4096)} == mapped
            tables = 1 if mapped else 0  # the upper ones are the stacks' as well
            assert free - machine.free_frames == len(mapped) + tables


def test_many_places_are_read_and_written_at_once(bench):
    machine = bench.machine
    addresses = [bench.data + offset for offset in (0, 4090, 8, 3 * 4096)]
    contents = [bytes([number] * 8) for number in range(1, 5)]
    machine.snapshot()
    machine.write_each(addresses, contents)
    assert machine.read_each(addresses, 8) == [machine.read(address, 8) for address in addresses] == contents
    machine.snapshot()
    assert machine.pages_copied == 3
    for bad, error in ((bench.text, TextWriteError), (HERE, NotMapped)):
        with pytest.raises(error):
            machine.write_each([bench.data, bad], [b"x", b"y"])
    with pytest.raises(NotMapped):
        machine.read_each([bench.data, HERE], 1)
    assert machine.read_each(addresses, 8) == contents
