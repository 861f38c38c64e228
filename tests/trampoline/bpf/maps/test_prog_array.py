from errno import E2BIG, EINVAL, ENOENT

import pytest
from kernel_releases import RELEASES

from emu.kernel.errors import KernelError
from trampoline.bpf.prog import TailOwner
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.lab import Lab


@pytest.fixture(params=list(RELEASES))
def lab(request):
    with Lab(request.param) as made:
        yield made


@pytest.fixture
def jumps(lab):
    return lab.map(MapSpec("jumps", MapType.PROG_ARRAY, 4, 4, 3))


OWNER = TailOwner(26, 7)


def program(lab, owner=OWNER):
    prog = lab.prog("fentry", "mov eax, 7\nret")
    prog.tail_owner = owner
    return prog


def errno_of(function, *args):
    with pytest.raises(KernelError) as caught:
        function(*args)
    return caught.value.errno


def tail_call(lab, jumps, index):
    """As generated code does it, at the release's offsets."""
    layout = lab.runtime.layout
    text = f"""
    mov edx, {index}
    mov rcx, {jumps.address:#x}
    cmp dword ptr [rcx + {layout.bpf_map.offset("max_entries")}], edx
    jbe out
    mov rcx, qword ptr [rcx + rdx*8 + {layout.bpf_array.offset("ptrs")}]
    test rcx, rcx
    je out
    mov rcx, qword ptr [rcx + {layout.prog_bpf_func}]
    jmp rcx
out:
    xor eax, eax
    ret
"""
    caller = lab.prog("fentry", text)
    try:
        return lab.call(caller.bpf_func).value
    finally:
        lab.unload(caller)


def test_programs_are_reached_through_their_slot(lab, jumps):
    prog = program(lab)
    jumps[1] = prog
    assert (dict(jumps), jumps[1], len(jumps)) == ({1: prog}, prog, 1)
    assert [tail_call(lab, jumps, index) for index in range(4)] == [0, 7, 0, 0]
    del jumps[1]
    assert tail_call(lab, jumps, 1) == 0
    assert not jumps


def test_array_holds_its_programs(lab, jumps):
    used = lab.kernel.slab.used, lab.kernel.percpu.used, lab.kernel.execmem.used
    prog = program(lab)
    jumps[0] = jumps[2] = prog
    lab.unload(prog)
    assert tail_call(lab, jumps, 2) == 7
    jumps[0] = program(lab)
    lab.unload(jumps[0])
    assert prog.refs == 1
    address = jumps.address
    lab.runtime.maps.close(jumps)
    lab.kernel.rcu.settle()
    assert not lab.programs.loaded
    assert (lab.kernel.percpu.used, lab.kernel.execmem.used) == used[1:]
    with pytest.raises(KernelError):
        lab.runtime.maps.at(address)


def test_only_programs_that_go_together(lab, jumps):
    jumps[0] = program(lab)
    assert errno_of(jumps.put, 1, program(lab, TailOwner(26, 8))) == EINVAL
    assert errno_of(jumps.put, 1, program(lab, None)) == EINVAL
    assert errno_of(jumps.put, 1, jumps[0], 1) == EINVAL
    assert errno_of(jumps.put, 3, jumps[0]) == E2BIG
    with pytest.raises(TypeError):
        jumps[1] = 5
    with pytest.raises(KeyError):
        del jumps[1]
    assert errno_of(jumps.delete_elem, b"\1\0\0\0") == ENOENT
    assert errno_of(jumps.delete_elem, b"\3\0\0\0") == E2BIG
    assert list(jumps) == [0]
    jumps.clear()
    assert not jumps


def test_patching_sees_the_new_program_before_the_old_goes(lab, jumps):
    first, second, seen = program(lab), program(lab), []
    jumps.patches.append(lambda array, index, prog: seen.append((index, prog, first.refs)))
    jumps[1] = first
    jumps[1] = second
    del jumps[1]
    assert seen == [(1, first, 2), (1, second, 2), (1, None, 1)]
