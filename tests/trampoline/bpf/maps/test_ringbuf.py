from errno import EAGAIN, EINVAL

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trampoline.bpf.maps.value_format import Number
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.lab import Lab

SIZE = 4096


@pytest.fixture(scope="module")
def lab():
    with Lab("7.2") as made:
        yield made


@pytest.fixture
def ring(lab):
    before = lab.kernel.slab.used, lab.runtime.memory.used
    found = lab.map(MapSpec("events", MapType.RINGBUF, 0, 0, SIZE))
    yield found
    lab.runtime.maps.close(found)
    assert (lab.kernel.slab.used, lab.runtime.memory.used) == before


@pytest.fixture
def helper(lab):
    def call(name, *args):
        value = lab.call(lab.runtime.address(f"bpf_ringbuf_{name}"), *args).value
        return value - (value >> 63 << 64)

    return call


def test_records_come_out_in_order(lab, ring, helper):
    data = lab.kernel.slab.alloc(16, "record")
    for number in range(3):
        lab.kernel.machine.write_u64(data, number)
        assert helper("output", ring.address, data, 8, 0) == 0
    assert helper("query", ring.address, 0) == len(ring) == 3 * 16
    ring.record_format = Number(8)
    assert list(ring) == [0, 1, 2]
    assert ring.drain() == []
    assert helper("query", ring.address, 0) == 0
    assert helper("query", ring.address, 1) == SIZE
    assert helper("query", ring.address, 2) == helper("query", ring.address, 3) == 48
    lab.kernel.slab.free(data)


def test_record_waits_for_those_reserved_before(ring, helper):
    first, second = helper("reserve", ring.address, 8, 0), helper("reserve", ring.address, 3, 0)
    ring.machine.write(first & 2**64 - 1, b"record 1")
    ring.machine.write(second & 2**64 - 1, b"two")
    helper("submit", second, 0)
    assert ring.drain() == []
    helper("submit", first, 0)
    assert ring.drain() == [b"record 1", b"two"]
    assert ring.wakeups == 1


def test_discarded_record_is_passed_over(ring, helper):
    first, second = helper("reserve", ring.address, 8, 0), helper("reserve", ring.address, 8, 0)
    helper("discard", first, 0)
    helper("submit", second, 2)
    assert ring.drain() == [bytes(8)]


def test_full_buffer_has_no_room(lab, ring, helper):
    data = lab.kernel.slab.alloc(8, "record")
    assert helper("reserve", ring.address, SIZE, 0) == 0
    assert helper("reserve", ring.address, 8, 1) == 0
    assert helper("output", ring.address, data, 8, 4) == -EINVAL
    held = [helper("reserve", ring.address, 1000, 0) for _ in range(4)]
    assert all(held)
    assert helper("output", ring.address, data, 100, 0) == -EAGAIN
    for record in held:
        helper("submit", record, 0)
    assert helper("output", ring.address, data, 100, 0) == -EAGAIN
    assert len(ring.drain()) == 4
    assert helper("output", ring.address, data, 100, 0) == 0
    lab.kernel.slab.free(data)


@settings(max_examples=20)
@given(sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(300, 1500)), max_size=30), every=st.integers(1, 4))
def test_records_keep_their_bytes_over_the_end(lab, sizes, every):
    """The data is in memory twice: a record that goes over the end is in one piece."""
    ring = lab.map(MapSpec("events", MapType.RINGBUF, 0, 0, SIZE))
    expected, got = [], []
    for number, size in enumerate(sizes):
        record = ring.reserve(size)
        if not record:
            got += ring.drain()
            record = ring.reserve(size)
        content = bytes([number + 1]) * size
        ring.machine.write(record, content)
        ring.commit(record, 0, discard=False)
        expected.append(content)
        if number % every == 0:
            got += ring.drain()
    assert got + ring.drain() == expected
    lab.runtime.maps.close(ring)
