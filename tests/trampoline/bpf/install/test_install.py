"""Programs after rewriting: compiled into guest memory, attached, called, freed."""

from dataclasses import replace

import pytest
from kernel_releases import RELEASES

from emu.errors import GuestFault
from emu.kernel.errors import KernelError
from trampoline.bpf.install.installer import InstallFunction, PokeKey
from trampoline.bpf.install.tag import calc_tag
from trampoline.bpf.isa import parse
from trampoline.bpf.isa.insn import LD_IMM64, Imm64
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.prog import TailOwner
from trampoline.bpf.program import LineInfo, MapSpec
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType, MapType
from trampoline.lab import Lab

OWNER = TailOwner(26)


@pytest.fixture(scope="module", params=list(RELEASES))
def lab(request):
    with Lab(request.param, vcpus=2) as made:
        _ = made.installer
        yield made


@pytest.fixture
def install(lab):
    before, progs = memory_of(lab), []

    def make(*texts, pokes=(), lines=(), maps=(), name="prog", attach="fentry", **func):
        codes = [parse(text.format(**calls(lab)), rewritten=True) for text in texts]
        functions = [InstallFunction(JitFunc(code, **func), pokes=tuple(pokes)) for code in codes]
        insns = [insn for function in functions for insn in function.func.insns]
        made = lab.installer.install(
            name, ATTACH_WORDS[attach], functions, insns, lines=lines, maps=maps, owner=OWNER, prog_type=26
        )
        progs.append(made)
        return made

    yield make
    for one in progs:
        lab.unload(one)
    assert memory_of(lab) == before


def memory_of(lab):
    kernel = lab.kernel
    lab.kernel.rcu.settle()
    return (
        *(kernel.slab.used, kernel.percpu.used, kernel.vmalloc.used, kernel.execmem.used, lab.runtime.memory.used),
        *(len(kernel.kallsyms), len(lab.installer.extable), len(lab.installer.installed), len(lab.programs.loaded)),
    )


def calls(lab):
    """Immediates of helper calls, by helper."""
    runtime = lab.runtime
    names = ("bpf_map_lookup_elem", "bpf_map_update_elem", "bpf_get_current_pid_tgid", "bpf_loop", "bpf_ktime_get_ns")
    return {name: runtime.address(name) - runtime.call_base for name in names}


COUNT = """
    r1 = {{map:#x}} ll
    *(u32 *)(r10 -4) = 0
    r2 = r10
    r2 += -4
    call {bpf_map_lookup_elem}
    if r0 == 0 goto out
    r1 = 1
    lock *(u64 *)(r0 +0) += r1
out:
    r0 = 0
    exit
"""


def test_program_counts_in_a_map(lab, install):
    counts = lab.map(MapSpec("counts", MapType.ARRAY, 4, 8, 1))
    prog = install(COUNT.format(**calls(lab)).format(map=counts.address), maps=[counts], stack_depth=4)
    with lab.attach(prog, "bpf_fentry_test1"):
        for _ in range(3):
            assert lab.call("bpf_fentry_test1", 1).value == 2
    assert counts[0] == 3
    assert counts.refs == 2
    lab.runtime.maps.close(counts)
    assert counts.address, "the program holds it"


def test_name_is_made_of_the_tag(lab, install):
    prog = install("r0 = 0\nexit", name="nothing")
    tag = calc_tag(parse("r0 = 0\nexit"), lab.release.tag_hash)
    assert prog.symbol.name == f"bpf_prog_{tag.hex()}_nothing"
    # Known from kernels: the program of two instructions that answers 0.
    assert tag.hex() == {"sha1": "a04f5eef06a7f555", "sha256": "59f4a931744dcdc6"}[lab.release.tag_hash]
    assert lab.kernel.kallsyms.function_name(prog.bpf_func) == prog.symbol.name


def test_tag_does_not_depend_on_maps():
    text = parse("r1 = map[fd:5] ll\nexit")
    assert calc_tag(text, "sha1") == calc_tag([replace(text[0], imm=77), text[1]], "sha1")
    assert calc_tag(text, "sha1") != calc_tag([replace(text[0], dst=2), text[1]], "sha1")


def test_functions_call_each_other(lab, install):
    main = parse("r1 = 5\ncall pc+0\nexit")
    callee = "r0 = r1\nr0 *= 3\nexit"
    call = replace(main[1], off=1)
    functions = [
        InstallFunction(JitFunc((main[0], call, main[2]))),
        InstallFunction(JitFunc(parse(callee), index=1), name="triple"),
    ]
    prog = lab.installer.install("main", AttachType.MODIFY_RETURN, functions, main)
    assert lab.call(prog.bpf_func).value == 15
    names = [symbol.name for symbol in lab.installer.symbols(prog)]
    assert names[0].endswith("_main")
    assert names[1].endswith("_triple")
    with lab.attach(prog, "bpf_modify_return_test"):
        assert lab.call("bpf_modify_return_test", 1, 0).value == 15
    lab.unload(prog)


def test_callback_of_a_helper(lab, install):
    load, *rest = parse("r2 = 0 ll\nr1 = 4\nr3 = r10\nr3 += -8\n*(u64 *)(r10 -8) = 0\nr4 = 0")
    load = replace(load, src=Imm64.FUNC, off=1)
    assert load.code == LD_IMM64
    end = parse("call {bpf_loop}\nr0 = *(u64 *)(r10 -8)\nexit".format(**calls(lab)))
    callback = parse("r3 = *(u64 *)(r2 +0)\nr3 += r1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nexit")
    functions = [
        InstallFunction(JitFunc((load, *rest, *end), stack_depth=8)),
        InstallFunction(JitFunc(callback, index=1)),
    ]
    prog = lab.installer.install("loop", AttachType.TRACE_FENTRY, functions, rest)
    assert lab.call(prog.bpf_func).value == 0 + 1 + 2 + 3
    lab.unload(prog)


@pytest.mark.parametrize("address", [0, 0x1000, 0xFFFFC8FF00000000, 0xFFFFFFFFFFFFF000, 0x8000000000000000])
def test_missing_kernel_memory_reads_as_zero(lab, install, address):
    text = f"""
    r1 = {address:#x} ll
    r6 = 77
    r0 = 55
    r0 = *(u64 *)(r1 +16)
    r0 += r6
    exit
"""
    insns = parse(text)
    load = replace(insns[3], code=insns[3].code & 0x1F | 0x20)  # PROBE_MEM
    functions = [InstallFunction(JitFunc((*insns[:3], load, *insns[4:])))]
    prog = lab.installer.install("probe", AttachType.TRACE_FENTRY, functions, insns)
    assert len(lab.installer.extable) == 1
    call = lab.call(prog.bpf_func)
    assert call.value == 77
    # Nothing is counted twice, and the load that faulted is not.
    assert call.counts.instructions < 30
    lab.unload(prog)


def test_kernel_memory_that_is_there_is_read(lab, install):
    address = lab.kernel.slab.alloc(8, "object", (1234).to_bytes(8, "little"))
    insns = parse(f"r1 = {address - 4:#x} ll\nr0 = *(u32 *)(r1 +4)\nexit")
    load = replace(insns[1], code=insns[1].code & 0x1F | 0x20)
    function = InstallFunction(JitFunc((insns[0], load, insns[2])))
    prog = lab.installer.install("probe", AttachType.TRACE_FENTRY, [function], insns)
    assert lab.call(prog.bpf_func).value == 1234
    lab.unload(prog)
    lab.kernel.slab.free(address)


def test_fault_names_the_source_line(lab, install):
    lines = [LineInfo(0, "prog.c", 7, 3, "int n = 1;"), LineInfo(2, "prog.c", 8, 5, "\treturn *(long *)8;")]
    prog = install("r0 = 1\nr1 = 8\nr0 = *(u64 *)(r1 +0)\nexit", lines=lines)
    with pytest.raises(GuestFault) as caught:
        lab.call(prog.bpf_func)
    assert "prog.c:8: return *(long *)8;" in caught.value.headline
    assert prog.symbol.name in caught.value.headline
    assert "r0 = *(u64 *)(r1 +0)" in caught.value.headline
    assert lab.installer.installed[prog.address].source_of(caught.value.rip) == lines[1]
    # The machine goes on after it.
    assert lab.call("bpf_fentry_test1", 1).value == 2


def jumps(lab):
    return lab.map(MapSpec("jumps", MapType.PROG_ARRAY, 4, 4, 3))


TAIL = """
    r2 = {map:#x} ll
    r3 = {index}
    tail_call {poke}
    r0 = 1000
    exit
"""


@pytest.mark.parametrize("direct", [False, True])
def test_tail_calls_follow_the_map(lab, install, direct):
    array = jumps(lab)
    one, two = (install(f"r0 = {value}\nexit", tail_call_reachable=True) for value in (1, 2))
    array[0] = one
    pokes = [PokeKey(array, 0), PokeKey(array, 1)] if direct else []
    callers = [
        install(
            TAIL.format(map=array.address, index=index, poke=index + 1 if direct else 0),
            *(),
            pokes=pokes,
            tail_call_reachable=True,
            maps=[array],
        )
        for index in range(2)
    ]

    def called():
        return [lab.call(caller.bpf_func).value for caller in callers]

    assert called() == [1, 1000]
    array[1] = two
    assert called() == [1, 2]
    array[0] = two
    array[1] = one
    assert called() == [2, 1]
    del array[0]
    assert called() == [1000, 1]
    lab.runtime.maps.close(array)
    assert called() == [1000, 1000]


def test_a_program_may_call_itself_a_few_times(lab, install):
    array = jumps(lab)
    counts = lab.map(MapSpec("counts", MapType.ARRAY, 4, 8, 1))
    text = f"""
    r6 = r1
    r1 = {counts.value_address:#x} ll
    r2 = 1
    lock *(u64 *)(r1 +0) += r2
    r1 = r6
    r2 = {array.address:#x} ll
    r3 = 2
    tail_call 0
    r0 = 5
    exit
"""
    prog = install(text, tail_call_reachable=True, maps=[array, counts])
    array[2] = prog
    assert lab.call(prog.bpf_func).value == 5
    assert counts[0] == 34  # MAX_TAIL_CALL_CNT and the first
    for found in (array, counts):
        lab.runtime.maps.close(found)


def test_what_can_not_be_installed_leaves_nothing(lab):
    counts = lab.map(MapSpec("counts", MapType.ARRAY, 4, 8, 1))
    before, kernel = memory_of(lab), lab.kernel
    fine = parse("r0 = 0\nexit")
    bad = InstallFunction(JitFunc(parse("tail_call 3\nexit", rewritten=True)))
    with pytest.raises(JitError):
        lab.installer.install("bad", AttachType.TRACE_FENTRY, [bad], fine)
    stop, old = 0, kernel.process.point
    while True:
        stop += 1
        left = [stop]

        def fail(*_, left=left):
            left[0] -= 1
            if not left[0]:
                raise KernelError(12, "none left")

        kernel.process.point = fail
        try:
            function = InstallFunction(JitFunc(fine, stack_depth=64), private_stack=True)
            prog = lab.installer.install("p", AttachType.TRACE_FENTRY, [function, function], fine, maps=[counts])
        except KernelError:
            assert memory_of(lab) == before
            assert counts.refs == 1
        else:
            break
        finally:
            kernel.process.point = old
    assert stop > 5
    lab.unload(prog)
    assert memory_of(lab) == before
    lab.runtime.maps.close(counts)
