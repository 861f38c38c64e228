from errno import E2BIG, EBADF, EINVAL, ENOENT

import pytest

from emu.kernel.errors import KernelError
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.lab import Lab

INNER = MapSpec("inner", MapType.ARRAY, 4, 8, 2)
OUTER = MapSpec("outer", MapType.ARRAY_OF_MAPS, 4, 4, 3, inner=INNER)


@pytest.fixture(scope="module")
def lab():
    with Lab("7.2") as made:
        yield made


def errno_of(function, *args):
    with pytest.raises(KernelError) as caught:
        function(*args)
    return caught.value.errno


def test_inner_maps_are_found_and_held(lab):
    maps = lab.runtime.maps
    before = lab.kernel.slab.used
    outer, inner = lab.map(OUTER), lab.map(INNER)
    outer[1] = inner
    maps.close(inner)
    key = lab.kernel.slab.alloc(4, "key", b"\1\0\0\0")
    lookup = lab.runtime.address("bpf_map_lookup_elem")
    assert lab.call(lookup, outer.address, key).value == inner.address
    for index in (0, 3):
        lab.kernel.machine.write_u32(key, index)
        assert lab.call(lookup, outer.address, key).value == 0
    lab.kernel.slab.free(key)
    assert (dict(outer), len(outer), 1 in outer, 0 in outer) == ({1: inner}, 1, True, False)
    del outer[1]
    assert inner.address == 0
    maps.close(outer)
    assert lab.kernel.slab.used == before


def test_what_is_refused(lab):
    outer = lab.map(OUTER)
    other = lab.map(MapSpec("other", MapType.ARRAY, 4, 8, 3))
    assert errno_of(outer.put, 0, other) == EINVAL
    assert errno_of(outer.put, 0, other, 1) == EINVAL
    assert errno_of(outer.put, 3, other) == E2BIG
    assert errno_of(outer.delete_elem, b"\0\0\0\0") == ENOENT
    assert errno_of(outer.delete_elem, b"\7\0\0\0") == E2BIG
    with pytest.raises(TypeError):
        outer[0] = 5
    assert errno_of(lab.map, MapSpec("outer", MapType.ARRAY_OF_MAPS, 4, 4, 3)) == EBADF
    assert errno_of(lab.map, MapSpec("outer", MapType.ARRAY_OF_MAPS, 4, 8, 3, inner=INNER)) == EINVAL
    assert errno_of(lab.map, MapSpec("outer", MapType.ARRAY_OF_MAPS, 4, 4, 3, inner=OUTER)) == EINVAL
    for found in (outer, other):
        lab.runtime.maps.close(found)
