"""Guest look-ups: what they find, what they cost, and that no instant is a wrong one."""

from functools import partial

import pytest

from emu.errors import GuestFault
from emu.kernel.errors import KernelError
from emu.machine.vcpu import RunStopReason
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.hash_64 import chain_report, hash_64, lookup_instructions
from trampoline.kfunc_md.kfunc_mds import BACKENDS, KfuncMds
from trampoline.kfunc_md.lookup import Entered, LookupRegisters

NOT_FOUND = 0xDEAD
RETURNED_TO = Entered("qword ptr [rsp - 8]", is_return_address=True)


def cost(bed, code, *args):
    """Instructions of a look-up that finds something, without the ret."""
    call = bed.run(code, *args)
    assert call.value != NOT_FOUND
    return call.counts.instructions - 1


def same_bucket(bed, bits, count):
    """So many functions whose addresses share a bucket, invented ones."""
    first = bed.functions[0]
    found = [func for func in range(first, first + (1 << 20), 16) if hash_64(func, bits) == hash_64(first, bits)]
    return found[:count]


def test_hash_costs_10_instructions_and_5_for_each_further_metadata(bed):
    mds = KfuncMds(bed.kernel)
    functions = same_bucket(bed, 4, 6)
    for func in functions:
        mds.create(func, 1)
    code = bed.lookup(mds.backend)
    chain = mds.backend.chain(functions[0])
    costs = {chain.index(mds.find(func)) + 1: cost(bed, code, func) for func in functions}
    assert costs == {1: 10, 2: 16, 3: 21, 4: 26, 5: 31, 6: 36}
    assert costs == {position: lookup_instructions(position) for position in range(1, 7)}
    # What the series' inlined look-up takes.
    assert all(instructions <= 13 + 5 * (position - 1) for position, instructions in costs.items())


@pytest.mark.parametrize("bits", [4, 5])
def test_hash_costs_the_same_after_a_resize(bed, bits):
    mds = KfuncMds(bed.kernel)
    for func in bed.functions[: 16 if bits == 5 else 1]:
        mds.create(func, 0)
    assert mds.backend.bits == bits
    first = mds.backend.chain(bed.functions[0])[0]
    func = next(f for f in bed.functions if mds.find(f) == first)
    assert cost(bed, bed.lookup(mds.backend), func) == 10


@pytest.mark.parametrize(
    ("backend", "checked", "entered", "expected"),
    [
        ("hash", False, Entered(), 10),
        ("hash", False, RETURNED_TO, 12),
        ("padding", False, Entered(), 3),
        ("padding", False, RETURNED_TO, 5),
        ("padding", True, Entered(), 5),
        ("padding", True, RETURNED_TO, 7),
        ("flat", False, Entered(), 5),
        ("flat", False, RETURNED_TO, 5),
        ("flat", True, RETURNED_TO, 5),
    ],
)
@pytest.mark.parametrize("site_offset", [0, 4])
def test_costs(bed, backend, checked, entered, expected, site_offset):
    mds = KfuncMds(bed.kernel, backend)
    func = bed.functions[3]
    md = mds.create(func, 2)
    code = bed.lookup(mds.backend, entered, checked=checked)
    if entered.is_return_address:
        bed.kernel.machine.write_u64(bed.vcpu.idle.first_rsp - 16, func + site_offset + 5)
        argument = 0
    else:
        argument = func
    assert bed.run(code, argument).value == md
    assert cost(bed, code, argument) == expected


@pytest.mark.parametrize(("backend", "expected"), [("hash", 11), ("padding", 5), ("flat", 5)])
def test_a_return_address_in_a_register(bed, backend, expected):
    mds = KfuncMds(bed.kernel, backend)
    func = bed.functions[9]
    md = mds.create(func, 0)
    code = bed.lookup(mds.backend, Entered("rdi", is_return_address=True))
    for after_site in (5, 9):
        assert bed.run(code, func + after_site).value == md
        assert cost(bed, code, func + after_site) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_registers_do(bed, backend):
    mds = KfuncMds(bed.kernel, backend)
    md = mds.create(bed.functions[5], 0)
    registers = LookupRegisters(out="r10", key="r11", scratch="r9")
    code = bed.lookup(mds.backend, Entered("rsi"), tail="mov rax, r10", registers=registers)
    assert bed.run(code, 0, bed.functions[5]).value == md
    with pytest.raises(ValueError, match="four registers"):
        LookupRegisters(out="rcx")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("checked", [False, True])
def test_without_metadata_the_caller_says_what_happens(bed, backend, checked):
    mds = KfuncMds(bed.kernel, backend)
    func, other = bed.functions[:2]
    mds.create(func, 0)
    mds.create(other, 0)
    code = bed.lookup(mds.backend, checked=checked)
    bed.kernel.rcu.automatic = False
    mds.put(func)
    assert bed.run(code, func).value == NOT_FOUND
    assert bed.run(code, other).value == mds.find(other)


@pytest.mark.parametrize("backend", ["hash", "padding"])
def test_a_function_that_never_had_metadata(bed, backend):
    mds = KfuncMds(bed.kernel, backend)
    code = bed.lookup(mds.backend, checked=True)
    assert bed.run(code, bed.functions[7]).value == NOT_FOUND


def test_the_posted_look_up_goes_on_with_null(bed):
    # Defect 1 by inspection: a CPU that is in the stub while the last link goes dereferences NULL.
    func = bed.functions[0]
    for defects in (TracingMultiDefects(), TracingMultiDefects(null_result=True)):
        mds = KfuncMds(bed.kernel, defects=defects)
        mds.create(func, 0)
        code = bed.lookup(mds.backend, tail="mov rax, qword ptr [rax + kfunc_md.bpf_progs]")
        assert bed.run(code, func).value == 0
        mds.put(func)
        if defects.null_result:
            with pytest.raises(GuestFault, match="0x28") as fault:
                bed.run(code, func)
            assert fault.value.address == 40
        else:
            assert bed.run(code, func).value == NOT_FOUND


def overtaken(bed, mds, func, step, change, *, checked=True):
    """What a look-up gives that is preempted after ``step`` instructions, ``change`` being made there, and whether it
    got that far. Its metadata is read afterwards, too.
    """
    tail = "mov rax, qword ptr [rax + kfunc_md.func]\nmov r8, rax"
    symbols = {"kfunc_md.func": 32}
    entered = Entered("rsi")
    text = mds.backend.lookup(entered, label="lookup", missing="none", checked=checked)
    code = bed.place(
        f"{text}\n{tail}\n    ret\nnone:\n    mov eax, {NOT_FOUND}\n    ret\n", {**symbols, **mds.backend.symbols}
    )
    task = bed.kernel.task("reader", code, 0, func)
    stop = bed.vcpu.run(task, preempt_after=step)
    if stop.reason is RunStopReason.RETURNED:
        return stop.value, False
    change()
    bed.kernel.rcu.settle()
    stop = bed.vcpu.run(task)
    return stop.value, True


def changes(mds, func, others, kind):
    if kind == "grow":
        for other in others:
            mds.create(other, 0)
    elif kind == "grow and shrink":
        for other in others:
            mds.create(other, 0)
        mds.put(*others)
    elif kind == "shrink":
        mds.put(*others)
    elif kind == "remove":
        mds.put(func)
    elif kind == "remove and create":
        mds.put(func)
        mds.create(func, 0)
    elif kind == "remove all":
        mds.put(func, *others)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("refs", "checked"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("kind", ["grow", "shrink", "grow and shrink", "remove", "remove and create", "remove all"])
def test_a_look_up_may_be_overtaken_at_any_instruction(make_bed, backend, refs, checked, kind):
    bed = make_bed()
    func, *others = bed.functions[:20]
    reached = 0
    for step in range(1, 60):
        mds = KfuncMds(bed.kernel, backend, refs=refs)
        if not kind.startswith("grow"):
            for other in others:
                mds.create(other, 0)
        mds.create(func, 0)
        value, midway = overtaken(bed, mds, func, step, partial(changes, mds, func, others, kind), checked=checked)
        if not midway:
            break
        reached += 1
        # The old metadata, or the new one: both are this function's, and not freed.
        assert value == func or (kind.startswith("remove") and value == NOT_FOUND)
        for left in (func, *others):
            if mds.find(left):
                mds.put(left)
        bed.kernel.rcu.settle()
        assert not mds.backend.nodes.objects or backend == "hash"
    assert reached >= 5


@pytest.mark.parametrize("defects", [TracingMultiDefects(), TracingMultiDefects(resize_copies=True)])
def test_a_look_up_finds_metadata_at_every_point_of_a_resize(make_bed, defects):
    bed = make_bed(vcpus=2)
    mds = KfuncMds(bed.kernel, defects=defects)
    code = bed.lookup(mds.backend)
    for func in bed.functions[:15]:
        mds.create(func, 0)
    sizes = set()

    def step_through(operation, present):
        task = bed.kernel.process.start(operation)
        while not task.done:
            task.step()
            sizes.add(mds.backend.bits)
            for func in present:
                md = bed.kernel.machine.vcpus[1].call(code, func).value
                assert bed.kernel.machine.read_u64(md + 32) == func

    step_through(lambda: mds.create(bed.functions[15], 0), bed.functions[:15])
    bed.kernel.rcu.settle()
    step_through(lambda: mds.put(*bed.functions[5:16]), bed.functions[:5])
    assert sizes == {4, 5}
    assert mds.backend.bits == 4


def test_the_posted_resize_takes_the_table_from_a_reader(make_bed):
    """With a copying resize an old table lives for an RCU grace period, which preempted readers outside a read section
    do not hold up.
    """
    bed = make_bed()
    lost = []
    for step in range(1, 12):
        mds = KfuncMds(bed.kernel, defects=TracingMultiDefects(resize_copies=True))
        for func in bed.functions[:16]:
            mds.create(func, 0)
        try:
            value, _ = overtaken(bed, mds, bed.functions[0], step, lambda m=mds: m.put(*bed.functions[1:16]))
        except GuestFault:
            lost.append(step)
        else:
            if value != bed.functions[0]:
                lost.append(step)
    assert lost


def test_padding_and_hash_text_refuse_what_can_not_be(make_bed):
    bed = make_bed("6.1")
    with pytest.raises(KernelError) as refused:
        KfuncMds(bed.kernel, "padding").backend.lookup(Entered(), label="l", missing="m")
    assert refused.value.errno == 95


def test_chain_report_of_a_whole_kernel():
    # As many functions as the cover letter counts: a table of 65536 buckets at load 0.67.
    functions = [0xFFFFFFFF81000000 + 448 * i for i in range(43871)]
    report = chain_report(functions)
    assert report.bits == 16
    assert report.load == pytest.approx(0.669, abs=0.001)
    assert sum(report.lengths.values()) == 1 << 16
    assert sum(length * chains for length, chains in report.lengths.items()) == 43871
    assert sum(report.positions.values()) == 43871
    assert 1.0 <= report.mean_position < 1.5
    assert 10 <= report.mean_instructions < 14


def test_chain_report_agrees_with_the_table(bed):
    mds = KfuncMds(bed.kernel)
    for func in bed.functions:
        mds.create(func, 0)
    report = chain_report(bed.functions)
    assert report.bits == mds.backend.bits
    code = bed.lookup(mds.backend)
    total = sum(cost(bed, code, func) for func in bed.functions)
    assert report.mean_instructions == pytest.approx(total / len(bed.functions))
    assert chain_report([]).mean_position == 0
