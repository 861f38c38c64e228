"""Programs through all stations: maps, verification, rewriting, compiling, running, freeing."""

from dataclasses import replace
from errno import EACCES, EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, EPERM

import pytest

from btf_writer import Writer
from emu.errors import GuestFault
from emu.kernel.errors import KernelError
from paths import ROOT
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.helpers.runtime.definition import GuestHelper
from trampoline.bpf.isa import parse, places
from trampoline.bpf.maps.errors import UnsupportedMap
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.prog import TailOwner
from trampoline.bpf.program import BpfProgram, FuncInfo, LineInfo, MapSpec
from trampoline.bpf.uapi import AttachType, MapType, ProgType
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.lab import Lab

FOLDER = ROOT / "tests"
TEST1 = "bpf_fentry_test1"


@pytest.fixture(scope="module", params=["6.1", "6.12", "7.2"])
def lab(request):
    with Lab(request.param, btf=Btf.read(FOLDER / "fixtures" / "load" / f"{request.param}.btf.xz")) as made:
        _ = made.installer
        yield made


@pytest.fixture
def load(lab):
    """Load, and see that nothing is left when all is unloaded."""
    before, progs = memory_of(lab), []

    def one(text, *maps, existing=None, **options):
        progs.append(lab.load(program(text, *maps, **options), existing))
        return progs[-1]

    yield one
    for prog in progs:
        lab.unload(prog)
    assert memory_of(lab) == before


def program(text, *maps, name="prog", target=TEST1, attach=AttachType.TRACE_FENTRY, **options):
    return BpfProgram(name, parse(text), ProgType.TRACING, attach, maps=maps, target=target, **options)


def memory_of(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    used = kernel.slab.used, kernel.percpu.used, kernel.vmalloc.used, kernel.execmem.used, lab.runtime.memory.used
    return (*used, len(kernel.kallsyms), len(lab.runtime.maps), len(lab.programs.loaded), len(lab.installer.extable))


COUNT_BY_ARGUMENT = """
    r1 = *(u64 *)(r1 +0)
    *(u32 *)(r10 -4) = r1
    *(u64 *)(r10 -16) = 1
    r1 = map[fd:0] ll
    r2 = r10
    r2 += -4
    call 1
    if r0 == 0 goto new
    r1 = 1
    lock *(u64 *)(r0 +0) += r1
    goto out
new:
    r1 = map[fd:0] ll
    r2 = r10
    r2 += -4
    r3 = r10
    r3 += -16
    r4 = 0
    call 2
out:
    r0 = 0
    exit
"""


@pytest.mark.parametrize(
    "kind", [MapType.HASH, MapType.LRU_HASH, MapType.PERCPU_HASH, MapType.ARRAY, MapType.PERCPU_ARRAY]
)
def test_program_counts_in_every_kind_of_map(lab, load, kind):
    prog = load(COUNT_BY_ARGUMENT, MapSpec("counts", kind, 4, 8, 8))
    with lab.attach(prog, TEST1):
        for argument in (3, 5, 3, 3):
            assert lab.call(TEST1, argument).value == argument + 1
    counts = lab.maps["counts"]
    each = [[3], [1]] if kind.name.startswith("PERCPU") or "_PERCPU" in kind.name else [3, 1]
    assert [counts[3], counts[5]] == each
    assert counts.refs == 2


def test_maps_may_be_shared(lab, load):
    spec = MapSpec("counts", MapType.HASH, 4, 8, 8)
    counts = lab.map(spec)
    first, second = (load(COUNT_BY_ARGUMENT, spec, existing={"counts": counts}) for _ in range(2))
    with lab.attach(first, TEST1), lab.attach(second, TEST1):
        lab.call(TEST1, 9)
    assert dict(counts) == {9: 2}
    lab.runtime.maps.close(counts)


def test_output_of_programs(lab, load):
    text = """
    r6 = *(u64 *)(r1 +0)
    r1 = 0x0a21642520697368 ll
    *(u64 *)(r10 -16) = r1
    *(u64 *)(r10 -8) = 0
    r1 = r10
    r1 += -16
    r2 = 9
    r3 = r6
    call 6
    r0 = 0
    exit
"""
    lab.trace.clear()
    prog = load(text)
    with lab.attach(prog, TEST1):
        lab.call(TEST1, 42)
    assert [line.text for line in lab.trace] == ["hsi 42!\n"]


RING = """
    r6 = *(u64 *)(r1 +0)
    r1 = map[fd:0] ll
    r2 = 8
    r3 = 0
    call 131
    if r0 == 0 goto out
    *(u64 *)(r0 +0) = r6
    r1 = r0
    r2 = 0
    call 132
out:
    r0 = 0
    exit
"""


def test_records_of_a_ring_buffer(lab, load):
    prog = load(RING, MapSpec("events", MapType.RINGBUF, 0, 0, 4096))
    with lab.attach(prog, TEST1):
        for argument in (1, 2):
            lab.call(TEST1, argument)
    assert lab.maps["events"].drain() == [number.to_bytes(8, "little") for number in (1, 2)]


def test_name_tag_and_attributes(lab, load):
    prog = load("r0 = 0\nexit", name="nothing")
    assert prog.symbol.name == f"bpf_prog_{lab.installer.installed[prog.address].tag.hex()}_nothing"
    assert (prog.attach_type, str(prog.attach_type), prog.sleepable) == (AttachType.TRACE_FENTRY, "fentry", False)
    function = lab.btf.functions_named(TEST1)[0]
    assert prog.tail_owner == TailOwner(ProgType.TRACING, function.proto_id)


TAIL = """
    r2 = map[fd:0] ll
    r3 = 1
    call 12
    r0 = 0
    exit
"""


def test_tail_call_of_a_known_slot(lab, load):
    spec = MapSpec("jumps", MapType.PROG_ARRAY, 4, 4, 4)
    jumps = lab.map(spec)
    counts = MapSpec("counts", MapType.ARRAY, 4, 8, 8)
    callee = load(COUNT_BY_ARGUMENT, counts, name="callee")
    caller = load(TAIL, spec, existing={"jumps": jumps}, name="caller")
    with lab.attach(caller, TEST1):
        lab.call(TEST1, 2)
        jumps[1] = callee
        lab.call(TEST1, 2)
        del jumps[1]
        lab.call(TEST1, 2)
    assert lab.maps["counts"][2] == 1
    other = load(COUNT_BY_ARGUMENT, counts, target="bpf_fentry_test3")
    with pytest.raises(KernelError) as refused:
        jumps[1] = other
    assert refused.value.errno == EINVAL
    lab.runtime.maps.close(jumps)


def test_calls_between_functions_and_back(lab, load):
    text = """
    r6 = *(u64 *)(r1 +0)
    *(u64 *)(r10 -8) = 0
    r1 = r6
    r2 = subprog[add] ll
    r3 = r10
    r3 += -8
    r4 = 0
    call 181
    r1 = *(u64 *)(r10 -8)
    r2 = map[fd:0][0]+0 ll
    *(u64 *)(r2 +0) = r1
    r0 = 0
    exit
add:
    r3 = *(u64 *)(r2 +0)
    r3 += r1
    *(u64 *)(r2 +0) = r3
    r0 = 0
    exit
"""
    w = Writer()
    number = w.int("int", 4, 1)
    main = w.func("prog", number, ("ctx", w.add(BtfKind.PTR, "", w.int("u64", 8))), linkage=1)
    add = w.func("add", number, ("i", number), ("ctx", w.add(BtfKind.PTR, "", 0)))
    made = program(text, MapSpec("sum", MapType.ARRAY, 4, 8, 1), btf=w.btf())
    made = replace(made, funcs=(FuncInfo(0, main), FuncInfo(second_function(made), add)))
    prog = lab.load(made)
    with lab.attach(prog, TEST1):
        lab.call(TEST1, 5)
    assert lab.maps["sum"][0] == 0 + 1 + 2 + 3 + 4
    names = [symbol.name for symbol in lab.installer.symbols(prog)]
    assert [name.rpartition("_")[2] for name in names] == ["prog", "add"]
    lab.unload(prog)


def second_function(made):
    exits = [slot + 1 for insn, slot in zip(made.insns, places(made.insns), strict=False) if insn.code == 0x95]
    return exits[0]


def test_pointers_of_the_kernel_that_are_bad_read_as_zero(lab, load):
    text = """
    r1 = *(u64 *)(r1 +0)
    r1 = *(u64 *)(r1 +0)
    r2 = map[fd:0][0]+0 ll
    *(u64 *)(r2 +0) = r1
    r0 = 0
    exit
"""
    seen = MapSpec("seen", MapType.ARRAY, 4, 8, 1, initial=b"\xff" * 8)
    prog = load(text, seen, target="bpf_fentry_test7")
    there = lab.kernel.slab.alloc(8, "struct", (77).to_bytes(8, "little"))
    with lab.attach(prog, "bpf_fentry_test7"):
        for pointer, value in ((0, 0), (there, 77), (0xFFFFC80000000000, 0), (1 << 63, 0)):
            lab.call("bpf_fentry_test7", pointer)
            assert lab.maps["seen"][0] == value
    lab.kernel.slab.free(there)


def test_fault_names_the_source(lab):
    """Defects are possible with helpers of one's own: the rest goes through verification."""
    lab.runtime.add(GuestHelper("bpf_ktime_get_boot_ns", "mov rax, qword ptr [8]\nret"))
    lines = (LineInfo(0, "broken.c", 3, 2, "u64 t = now();"), LineInfo(1, "broken.c", 4, 2, "return 0;"))
    prog = lab.load(program("call 125\nr0 = 0\nexit", lines=lines))
    with lab.attach(prog, TEST1), pytest.raises(GuestFault) as caught:
        lab.call(TEST1, 1)
    assert "bpf_ktime_get_boot_ns" in caught.value.headline
    assert lab.installer.source_of(caught.value) == lines[0]
    lab.unload(prog)
    lab.runtime.add(GuestHelper("bpf_ktime_get_boot_ns", "mov rax, qword ptr gs:[percpu.sched_clock]\nret"))


def doc_examples():
    text = (FOLDER.parent / "docs" / "helpers.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    return [block for block in blocks if "lab.runtime.add" in block]


@pytest.mark.parametrize(("number", "answer"), [(0, 1000 << 32 | 1000), (1, 0)])
def test_helper_of_ones_own(lab, number, answer):
    exec(doc_examples()[number], {"lab": lab})
    text = "call 15\nr2 = map[fd:0][0]+0 ll\n*(u64 *)(r2 +0) = r0\nr0 = 0\nexit"
    prog = lab.load(program(text, MapSpec("uid", MapType.ARRAY, 4, 8, 1, initial=b"\xff" * 8)))
    with lab.attach(prog, TEST1):
        lab.call(TEST1, 1)
    assert lab.maps["uid"][0] == answer
    lab.unload(prog)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "errno", "bad"),
    [
        (VerifierError, EACCES, program("exit")),
        (VerifierError, EINVAL, program("r0 = 1\nexit")),
        (VerifierError, EACCES, program("r0 = *(u64 *)(r1 +512)\nexit")),
        (VerifierError, EINVAL, program("r0 = 0\nexit", target="no_such_function")),
        (VerifierError, EINVAL, program("r0 = 0\nexit", target="bpf_testmod_fentry_test7")),
        (VerifierError, EINVAL, program("r0 = 0\nexit", flags=1 << 30)),
        (KernelError, EINVAL, program("r0 = 0\nexit", MapSpec("bad", MapType.HASH, 0, 8, 8))),
        (UnsupportedMap, 0, program("r0 = 0\nexit", MapSpec("trie", MapType.LPM_TRIE, 8, 8, 8, 1))),
        (Unsupported, 0, BpfProgram("kp", parse("r0 = 0\nexit"), ProgType.KPROBE)),
    ],
)
def test_refused_programs_leave_nothing(lab, error, errno, bad):
    before = memory_of(lab)
    with pytest.raises(error) as refused:
        lab.load(replace(bad, maps=(MapSpec("counts", MapType.HASH, 4, 8, 8), *bad.maps)))
    assert getattr(refused.value, "errno", 0) == errno
    assert memory_of(lab) == before


def test_memory_that_runs_out_on_the_way_leaves_nothing(lab):
    made = program(COUNT_BY_ARGUMENT, MapSpec("counts", MapType.PERCPU_HASH, 4, 8, 8))
    before, process, stop = memory_of(lab), lab.kernel.process, 0
    old = process.point
    while True:
        stop += 1
        left = [stop]

        def fail(*_, left=left):
            left[0] -= 1
            if not left[0]:
                raise KernelError(ENOMEM, "none left")

        process.point = fail
        try:
            prog = lab.load(made)
        except KernelError:
            assert memory_of(lab) == before
        else:
            break
        finally:
            process.point = old
    assert stop > 6
    lab.unload(prog)
    assert memory_of(lab) == before


def test_without_a_btf_functions_have_the_types_that_they_declare():
    with Lab("6.12") as bare:
        text = "r1 = *(u64 *)(r1 +{})\nr0 = 0\nexit"
        prog = bare.load(program(text.format(8), target="bpf_fentry_test2"))
        bare.attach(prog, "bpf_fentry_test2")
        with pytest.raises(VerifierError, match="invalid bpf_context access off=16"):
            bare.load(program(text.format(16), target="bpf_fentry_test2"))


def test_a_program_for_the_functions_own_slots_is_not_on_a_generic_image():
    text = "r1 = *(u64 *)(r1 +8)\nr0 = 0\nexit"
    with Lab("6.12", design="generic") as generic:
        made = program(text, target="bpf_fentry_test1", attach=AttachType.TRACE_FEXIT)
        with pytest.raises(KernelError, match="slot 1; here it is in slot 6") as caught:
            generic.attach(generic.load(made), "bpf_fentry_test1")
        assert caught.value.errno == EOPNOTSUPP


# Objects --------------------------------------------------------------------------------------------------------------


def opened(lab, name, **options):
    return lab.open(BpfObject.open(FOLDER / "selftests" / f"{name}.o"), **options)


def test_variables_of_an_object(lab):
    before = memory_of(lab)
    with opened(lab, "fentry_test", data={"saw1": 40}) as loaded:
        assert loaded.data["saw1"] == 40
        loaded.attach_all()
        lab.call(TEST1, 1)
        loaded.data["saw1"] += 1
        assert loaded.data["saw1"] == 42
        assert {"saw1": 42, "saw2": 0}.items() <= dict(loaded.data).items()
        with pytest.raises(KeyError):
            loaded.data["saw99"] = 1
        with pytest.raises(TypeError):
            del loaded.data["saw1"]
    assert memory_of(lab) == before


def test_attach_all_or_none(lab):
    with opened(lab, "fentry_test") as first, opened(lab, "fentry_test", names=["test2"]) as second:
        second.programs["again"] = first.programs["test2"]
        second._sources = {**second._sources, "again": second._sources["test2"]}
        first.attach("test2")
        with pytest.raises(KernelError) as refused:
            second.attach_all()
        assert refused.value.errno == EBUSY
        assert not second.links
        del second.programs["again"]
        second.attach_all()


def test_object_that_can_not_be_loaded_leaves_nothing(lab):
    before = memory_of(lab)
    with pytest.raises(KeyError):
        opened(lab, "fentry_test", data={"no_such_variable": 1})
    with pytest.raises(TrampolineError):
        opened(lab, "many_args")
    assert memory_of(lab) == before


def test_user_space_can_not_change_constants(lab):
    data = MapSpec("x.rodata", MapType.ARRAY, 4, 4, 1, 1 << 7, initial=b"\5\0\0\0", readonly=True)
    prog = lab.load(program("r1 = map[fd:0][0]+0 ll\nr0 = *(u32 *)(r1 +0)\nr0 = 0\nexit", data))
    with pytest.raises(KernelError) as refused:
        lab.maps["x.rodata"][0] = 6
    assert refused.value.errno == EPERM
    lab.unload(prog)
