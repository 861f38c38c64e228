"""Thunks: their bytes and listing, the blocks that hold them, what happens where they can't be."""

from errno import ENOMEM, ERANGE

import pytest

from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import refused
from trampoline.bpf.errors import KernelError
from trampoline.designs.entry_thunks import FIRST_BLOCK, SIZE, Thunks


@pytest.fixture
def bed(make_lab):
    lab = make_lab("7.2")
    lab.kernel.add_functions(FunctionText("caller", "pop rax\nmov rdx, r10\nret", traceable=False))
    return lab.kernel, Thunks(lab.kernel), lab.kernel.kallsyms.address("caller")


def blocks(kernel):
    return [name for name in kernel.execmem.images.values() if name == "tramplab_thunks"]


def test_a_thunk_leaves_what_a_call_at_the_site_would_leave(bed):
    kernel, thunks, caller = bed
    function = kernel.function("bpf_fentry_test1")
    thunk = thunks.make(function.address, function.site + 5, caller)
    thunks.write()
    call = kernel.call(thunk)
    assert call.value == function.site + 5
    assert kernel.machine.vcpus[0].regs.r10 == function.address
    assert call.counts.instructions == 3 + 3
    assert call.counts.by_phase["entry"] == 3


@pytest.mark.parametrize("record", [0, 0xFFFFC90000001230, 0xFFFFFFFFC1000040])
def test_the_listing_is_that_of_the_bytes(bed, record):
    kernel, thunks, caller = bed
    for name in ("bpf_fentry_test1", "bpf_fentry_test2"):
        function = kernel.function(name)
        thunk = thunks.make(function.address, function.site + 5, caller, record)
        thunks.write()
        image = kernel.machine.images.at(thunk + 6)
        assert image.address == thunk
        assert image.code == kernel.machine.read(thunk, len(image))
        assert [line.text.split()[0] for line in image.lines] == ["push", "mov", *(["movabs"] if record else []), "jmp"]
        assert not record or hex(record) in image.lines[2].text
    assert kernel.machine.images.at(thunk + SIZE) is None, "nothing is there yet"


def test_blocks_grow_and_go(bed):
    kernel, thunks, caller = bed
    before = dict(kernel.execmem.images), len(kernel.kallsyms)
    function = kernel.function("bpf_fentry_test1")
    made = [thunks.make(function.address, function.site + 5, caller) for _ in range(2 * FIRST_BLOCK + 1)]
    assert len(set(made)) == len(made)
    assert len(blocks(kernel)) == 2
    thunks.write()
    thunks.discard(made[:-1])
    assert len(blocks(kernel)) == 1
    assert kernel.machine.read(made[-1], 1) == b"\x68"
    thunks.put(made[-1])
    kernel.rcu.settle()
    assert (dict(kernel.execmem.images), len(kernel.kallsyms)) == before


def test_a_freed_thunk_is_used_again(bed):
    kernel, thunks, caller = bed
    function = kernel.function("bpf_fentry_test1")
    first, _ = (thunks.make(function.address, function.site + 5, caller) for _ in range(2))
    thunks.write()
    thunks.discard([first])
    assert kernel.machine.read(first, SIZE) == b"\xcc" * SIZE
    assert kernel.machine.images.at(first) is None
    assert thunks.make(function.address, function.site + 5, caller) == first
    thunks.write()
    assert kernel.call(first).value == function.site + 5


def test_what_is_out_of_reach_or_fails(bed):
    kernel, thunks, caller = bed
    refused(ERANGE, thunks.make, 0xFFFF888000001000, 0xFFFF888000001009, caller)
    with (
        kernel.process.fail_at(PointKind.ALLOC, 1, lambda what: KernelError(ENOMEM, what)),
        pytest.raises(KernelError),
    ):
        thunks.make(kernel.function("bpf_fentry_test1").address, 0xFFFFFFFF81000000, caller)
    assert blocks(kernel) == []


@pytest.mark.parametrize("kind", ["fexit", "fmod_ret", "fsession"])
def test_only_sites_whose_programs_run_behind_the_original_jump(make_lab, kind):
    source = AssemblyFunctions((FunctionText("traced", "lea eax, [rdi + 1]\nret", "int traced(int a)"),))
    lab = make_lab("7.2", design="specialised", functions=(source,))
    site = lab.kernel.function("traced").site
    entry = lab.attach(lab.prog("fentry", lambda ctx: None), "traced")
    assert lab.kernel.machine.read(site, 1) == b"\xe8"
    leave = lab.attach(lab.prog(kind, lambda ctx: None), "traced")
    assert lab.kernel.machine.read(site, 1) == b"\xe9"
    assert lab.call("traced", 1).counts.unbalanced_returns == 0
    leave.detach()
    assert lab.kernel.machine.read(site, 1) == b"\xe8"
    assert blocks(lab.kernel) == []
    entry.detach()
