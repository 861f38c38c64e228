from errno import E2BIG, EEXIST, EINVAL, ENOENT, ENOMEM, EPERM

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_releases import RELEASES

from emu.kernel.errors import ENOTSUPP, KernelError
from trampoline.bpf.maps.errors import MapValueError, UnsupportedMap
from trampoline.bpf.maps.flags import MapFlag, UpdateFlag
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.lab import Lab

HASHES = (MapType.HASH, MapType.PERCPU_HASH, MapType.LRU_HASH, MapType.LRU_PERCPU_HASH)
ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)
NO_PREALLOC = MapFlag.NO_PREALLOC


def spec(kind=MapType.HASH, key=4, value=8, entries=8, flags=0, name="m", **more):
    return MapSpec(name, kind, key, value, entries, int(flags), **more)


def memory_of(lab):
    kernel = lab.kernel
    return kernel.slab.used, kernel.percpu.used, kernel.vmalloc.used, lab.runtime.memory.used, len(lab.runtime.maps)


@pytest.fixture(scope="module", params=list(RELEASES))
def lab(request):
    with Lab(request.param, vcpus=2) as made:
        _ = made.runtime
        yield made


@pytest.fixture
def make(lab):
    before, made = memory_of(lab), []

    def create(*args, **more):
        made.append(lab.map(spec(*args, **more)))
        return made[-1]

    yield create
    for one in made:
        if one.address:
            lab.runtime.maps.close(one)
    lab.kernel.rcu.settle()
    assert memory_of(lab) == before


def guest_lookup(lab, found, key):
    """What a program's bpf_map_lookup_elem() gives."""
    scratch = lab.kernel.slab.alloc(len(key), "key")
    try:
        lab.kernel.machine.write(scratch, key)
        return lab.call(lab.runtime.address("bpf_map_lookup_elem"), found.address, scratch).value
    finally:
        lab.kernel.slab.free(scratch)


def refused(errno, function, *args):
    with pytest.raises(KernelError) as caught:
        function(*args)
    assert caught.value.errno == errno


@pytest.mark.parametrize("key_size", [1, 3, 4, 8, 12, 13, 27])
@pytest.mark.parametrize("kind", HASHES)
def test_guest_finds_what_python_put_in(lab, make, kind, key_size):
    found = make(kind, key=key_size, entries=20)
    keys = [bytes([number]) * key_size for number in range(20)]
    for number, key in enumerate(keys):
        found[key] = number + 7
    for number, key in enumerate(keys):
        assert lab.kernel.machine.read_u64(guest_lookup(lab, found, key)) == number + 7
    assert guest_lookup(lab, found, b"\xff" * key_size) == 0


@pytest.mark.parametrize("flags", [0, NO_PREALLOC])
@pytest.mark.parametrize("kind", [MapType.HASH, MapType.PERCPU_HASH])
@settings(max_examples=8)
@given(steps=st.lists(st.tuples(st.sampled_from("sdfx"), st.integers(0, 9), st.integers(0, 2**64 - 1)), max_size=40))
def test_hash_is_a_dictionary(lab, kind, flags, steps):
    before = memory_of(lab)
    found, model = lab.map(spec(kind, entries=6, flags=flags)), {}
    for step, key, value in steps:
        flag = {"s": UpdateFlag.ANY, "f": UpdateFlag.NOEXIST, "x": UpdateFlag.EXIST}.get(step)
        if flag is None:
            assert (model.pop(key, None) is None) is _raises(KeyError, found.__delitem__, key)
            continue
        errno = 0
        if flag == UpdateFlag.NOEXIST and key in model:
            errno = EEXIST
        elif flag == UpdateFlag.EXIST and key not in model:
            errno = ENOENT
        elif key not in model and len(model) == 6:
            errno = E2BIG
        if errno:
            refused(errno, found.put, key, value, flag)
        else:
            found.put(key, value, flag)
            model[key] = value
    expected = {key: [value] * 2 for key, value in model.items()} if kind is MapType.PERCPU_HASH else model
    assert dict(found) == expected
    assert len(found) == len(model)
    for key in range(10):
        address = guest_lookup(lab, found, key.to_bytes(4, "little"))
        assert (lab.kernel.machine.read_u64(address) if address else None) == model.get(key)
    lab.runtime.maps.close(found)
    lab.kernel.rcu.settle()
    assert memory_of(lab) == before


def _raises(error, function, *args):
    try:
        function(*args)
    except error:
        return True
    return False


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_has_every_element(lab, make, kind):
    found = make(kind, value=12, entries=5)
    each = [bytes(12)] * 2 if kind is MapType.PERCPU_ARRAY else bytes(12)
    assert dict(found) == dict.fromkeys(range(5), each)
    found[3] = b"twelve bytes"
    address = guest_lookup(lab, found, b"\3\0\0\0")
    assert lab.kernel.machine.read(address, 12) == b"twelve bytes"
    assert guest_lookup(lab, found, b"\5\0\0\0") == 0
    refused(E2BIG, found.put, 5, bytes(12))
    refused(EEXIST, found.put, 1, bytes(12), UpdateFlag.NOEXIST)
    refused(EINVAL, found.put, 1, bytes(12), 4)
    refused(EINVAL, found.__delitem__, 1)
    assert 5 not in found
    assert found.get(5) is None


def test_values_of_each_cpu(lab, make):
    for kind in (MapType.PERCPU_ARRAY, MapType.PERCPU_HASH, MapType.LRU_PERCPU_HASH):
        found = make(kind)
        found[1] = [5, 6]
        assert found[1] == [5, 6]
        scratch = lab.kernel.slab.alloc(4, "key")
        lab.kernel.machine.write_u32(scratch, 1)
        lookup = lab.runtime.address("bpf_map_lookup_elem")
        for cpu in range(2):
            address = lab.call(lookup, found.address, scratch, cpu=cpu).value
            assert lab.kernel.machine.read_u64(address) == 5 + cpu
            elem = lab.runtime.address("bpf_map_lookup_percpu_elem")
            assert lab.call(elem, found.address, scratch, cpu, cpu=1 - cpu).value == address
        assert lab.call(elem, found.address, scratch, 2).value == 0
        lab.kernel.slab.free(scratch)
        refused(EINVAL, found.put, 1, [1, 2, 3])


def test_array_of_a_page_and_more_is_mapped_for_user_space(lab, make):
    found = make(MapType.ARRAY, value=100, entries=90, flags=MapFlag.MMAPABLE)
    assert found.value_address % 4096 == 0
    found[89] = b"z" * 100
    assert lab.kernel.machine.read(guest_lookup(lab, found, b"\x59\0\0\0"), 100) == b"z" * 100


def test_global_data_begins_with_its_values_and_read_only_data_stays(lab, make):
    data = make(MapType.ARRAY, value=6, entries=1, initial=b"abc")
    assert data[0] == b"abc\0\0\0"
    fixed = make(MapType.ARRAY, value=6, entries=1, initial=b"fixed!", readonly=True)
    assert fixed[0] == b"fixed!"
    refused(EPERM, fixed.put, 0, b"broken")
    before = memory_of(lab)
    refused(E2BIG, lab.map, spec(MapType.ARRAY, value=2, entries=1, initial=b"too long"))
    assert memory_of(lab) == before


def test_full_lru_drops_what_was_not_looked_up(lab, make):
    found = make(MapType.LRU_HASH, entries=4)
    for key in range(4):
        found[key] = key
    guest_lookup(lab, found, b"\0\0\0\0")
    found[4] = 4
    assert sorted(found) == [0, 2, 3, 4]
    found[5] = 5
    assert sorted(found) == [0, 3, 4, 5]


def test_value_in_use_outlives_its_deletion(lab, make):
    found = make(flags=NO_PREALLOC)
    found[1] = 42
    address = guest_lookup(lab, found, b"\1\0\0\0")
    found.delete_elem(b"\1\0\0\0")
    assert lab.kernel.machine.read_u64(address) == 42
    lab.kernel.rcu.settle()
    assert lab.kernel.machine.read(address, 8) == b"\x6b" * 8


def test_keys_and_values_must_fit(make):
    found = make()
    for key in (b"123", 2**32, "1234", None):
        with pytest.raises(MapValueError):
            found[key] = 1
    with pytest.raises(MapValueError):
        found[1] = 2**64
    found[-1] = -1
    assert dict(found) == {2**32 - 1: 2**64 - 1}
    with pytest.raises(KeyError):
        del found[1]
    found.clear()
    assert not found


@pytest.mark.parametrize(
    ("errno", "bad"),
    [
        (EINVAL, spec(key=0)),
        (EINVAL, spec(value=0)),
        (EINVAL, spec(entries=0)),
        (EINVAL, spec(flags=MapFlag.MMAPABLE)),
        (EINVAL, spec(flags=MapFlag.NO_COMMON_LRU)),
        (EINVAL, spec(flags=1 << 25)),
        (EINVAL, spec(MapType.ARRAY, flags=1 << 25)),
        (EINVAL, spec(MapType.RINGBUF, 0, 0, 4096, 1 << 25)),
        (EINVAL, spec(flags=MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG)),
        (EINVAL, spec(MapType.PERCPU_HASH, flags=MapFlag.NUMA_NODE)),
        (ENOTSUPP, spec(MapType.LRU_HASH, flags=NO_PREALLOC)),
        (E2BIG, spec(value=4 << 20)),
        (E2BIG, spec(MapType.PERCPU_HASH, value=(32 << 10) + 1)),
        (ENOMEM, spec(entries=1 << 30)),
        (EINVAL, spec(MapType.ARRAY, key=8)),
        (EINVAL, spec(MapType.ARRAY, entries=0)),
        (EINVAL, spec(MapType.ARRAY, flags=NO_PREALLOC)),
        (EINVAL, spec(MapType.PERCPU_ARRAY, flags=MapFlag.MMAPABLE)),
        (E2BIG, spec(MapType.PERCPU_ARRAY, value=1 << 16)),
        (ENOMEM, spec(MapType.ARRAY, value=1 << 30)),
        (ENOMEM, spec(MapType.PERCPU_ARRAY, value=8, entries=1 << 20)),
        (EINVAL, spec(MapType.PROG_ARRAY, value=8)),
        (EINVAL, spec(MapType.PROG_ARRAY, value=4, flags=MapFlag.RDONLY_PROG)),
        (EINVAL, spec(MapType.RINGBUF, 4, 0, 4096)),
        (EINVAL, spec(MapType.RINGBUF, 0, 0, 4095)),
        (EINVAL, spec(MapType.RINGBUF, 0, 0, 12288)),
        (EINVAL, spec(MapType.RINGBUF, 0, 0, 4096, NO_PREALLOC)),
        (ENOMEM, spec(MapType.RINGBUF, 0, 0, 1 << 30)),
        (EINVAL, spec(name="a map")),
        (EINVAL, spec(MapType.UNSPEC)),
        (EINVAL, spec(99)),
    ],
)
def test_refused_creation_leaves_nothing(lab, errno, bad):
    before, frames = memory_of(lab), lab.kernel.machine.free_frames
    refused(errno, lab.map, bad)
    assert memory_of(lab) == before
    assert lab.kernel.machine.free_frames == frames


def test_unmodelled_types_are_said(lab):
    with pytest.raises(UnsupportedMap, match="lpm_trie"):
        lab.map(spec(MapType.LPM_TRIE, flags=NO_PREALLOC))


@pytest.mark.parametrize("kind", [*HASHES, *ARRAYS, MapType.RINGBUF])
def test_memory_that_runs_out_on_the_way_leaves_nothing(lab, kind):
    wanted = spec(kind, 0, 0, 4096) if kind is MapType.RINGBUF else spec(kind, entries=900)
    before = memory_of(lab)
    process, stop = lab.kernel.process, 0
    while True:
        stop += 1
        left = [stop]

        def fail(*_, left=left):
            left[0] -= 1
            if not left[0]:
                raise KernelError(ENOMEM, "none left")

        old, process.point = process.point, fail
        try:
            made = lab.map(wanted)
        except KernelError:
            assert memory_of(lab) == before
        else:
            lab.runtime.maps.close(made)
            break
        finally:
            process.point = old
    assert stop > 1
    assert memory_of(lab) == before
