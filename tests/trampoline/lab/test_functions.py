"""A kernel populated from BTF: one of 2,000 functions written byte by byte, and excerpts of three kernels."""

import random
import struct
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
from kernel_releases import RELEASES

from asm.encodings import ENDBR64, NOPS
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.task import TaskState
from paths import FIXTURES
from refusals import refused
from trampoline.bpf.btf.btf import Btf, BtfKind, model_of
from trampoline.bpf.errors import ENOTSUPP, KernelError, PrototypeError
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType
from trampoline.lab import Lab
from trampoline.lab.btf_functions import BtfFunctions, attachable

FIXTURES = FIXTURES / "btf"
KERNELS = ("6.1", "6.12", "7.2")
ENOENT, EBUSY, EINVAL = 2, 16, 22

TYPES = {
    "u8": (BtfKind.INT, 1),
    "u16": (BtfKind.INT, 2),
    "int": (BtfKind.INT, 4),
    "u64": (BtfKind.INT, 8),
    "ptr": (BtfKind.PTR, 8),
    "enum": (BtfKind.ENUM, 4),
    "three": (BtfKind.STRUCT, 3),
    "pair": (BtfKind.STRUCT, 16),
    "big": (BtfKind.STRUCT, 24),
    "empty": (BtfKind.STRUCT, 0),
    "union": (BtfKind.UNION, 8),
    "double": (BtfKind.FLOAT, 8),
}
PLAIN = ("u8", "u16", "int", "u64", "ptr", "enum")
COUNTS = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 9, 12, 14)


def functions():
    """(name, return type, parameter types) of 2,000 functions."""
    rng = random.Random(2000)
    for number in range(1947):
        passed = PLAIN if number % 4 else tuple(TYPES)
        returned = PLAIN if number % 50 else ("pair", "big", "union", "three")
        params = tuple(rng.choice(passed) for _ in range(rng.choice(COUNTS)))
        yield f"{rng.choice(('tcp', 'udp'))}_{number}", rng.choice(("void", *returned)), params
    yield from (("twice", "int", ("int",) * (number % 3)) for number in range(24))
    yield from ((f"slots{count}", "u64", ("u64",) * count) for count in range(13))
    yield "narrow", "u64", ("u64",) * 6 + ("int",)
    yield "twelve_slots", "u64", ("pair",) * 6
    yield "thirteen_slots", "u64", ("pair",) * 6 + ("int",)
    yield "thirteen_args", "u64", ("int",) * 13
    yield "takes_union", "int", ("union",)
    yield "variadic", "int", ("ptr", "...")
    yield "schedule", "void", ()
    yield "migrate_disable", "void", ()
    yield "preempt_count_add", "void", ("int",)
    yield "__bpf_tramp_enter", "void", ("ptr",)
    yield "sched_clock", "u64", ()
    yield "bpf_get_attach_cookie", "u64", ("ptr",)
    yield "do_exit", "void", ("u64",)
    yield "kthread_exit", "void", ("u64",)
    yield "bpf_fentry_test5", "int", ("u64", "ptr", "u16", "int", "u64")
    yield "bpf_fentry_test2", "int", ("int", "u64")


ALL = tuple(functions())
STANDING = {
    "schedule",
    "migrate_disable",
    "__bpf_tramp_enter",
    "sched_clock",
    "bpf_get_attach_cookie",
    "bpf_fentry_test5",
    "bpf_fentry_test2",
}
"""Those that the kernel has without BTF."""


@cache
def written():
    """The functions as BTF."""
    strings, records, ids, kinds = bytearray(1), bytearray(), {"void": 0, "...": 0}, []

    def add(kind, name, third=0, vlen=0, *words):
        at = len(strings) if name else 0
        strings.extend(name.encode() + b"\0" if name else b"")
        records.extend(struct.pack(f"<{3 + len(words)}I", at, kind << 24 | vlen, third, *words))
        kinds.append(kind)
        return len(kinds)

    for name, (kind, size) in TYPES.items():
        pointer = kind is BtfKind.PTR
        ids[name] = add(kind, "" if pointer else name, 0 if pointer else size, 0, *[8 * size] * (kind is BtfKind.INT))
    for name, ret, params in ALL:
        proto = add(BtfKind.FUNC_PROTO, "", ids[ret], len(params), *(word for p in params for word in (0, ids[p])))
        add(BtfKind.FUNC, name, proto)
    header = struct.pack("<HBBI4I", 0xEB9F, 1, 0, 24, 0, len(records), len(records), len(strings))
    return Btf(header + bytes(records) + bytes(strings))


def words_of(ret, params):
    """How many words a call has in registers and on the stack (System V ABI)."""
    registers, stack = int(ret == "big"), 0
    for param in params:
        slots = 0 if param in ("double", "...") else (TYPES[param][1] + 7) // 8
        if param != "big" and registers + slots <= 6:
            registers += slots
        else:
            stack += slots
    return registers, stack


def call(lab, row, ret, params, rng):
    """Call a function with words of 64 random bits; what it gives, and what it should."""
    registers, stack = words_of(ret, params)
    words = [rng.getrandbits(64) for _ in range(registers + stack)]
    value = lab.call(row.address, *words[:registers], stack_args=words[registers:]).value
    if ret == "void":
        return None, None
    if ret == "big":
        return value, words[0]
    if stack == 1 and TYPES[params[-1]][1] <= 4:
        words[-1] &= 0xFFFFFFFF
    bits = {"three": 32, "pair": 64}.get(ret, 8 * TYPES.get(ret, (0, 8))[1])
    return value, sum(words) % (1 << bits)


@pytest.fixture(scope="module", params=KERNELS)
def lab(request):
    with Lab(request.param, btf=written()) as lab:
        yield lab


def stamped(lab):
    rows = lab.population.select(lab.population.functions.ids)
    return [(row, ret, params) for row, (name, ret, params) in zip(rows, ALL, strict=True) if name not in STANDING]


def test_every_function_returns_the_sum_of_its_words(lab):
    rng = random.Random(1)
    for row, ret, params in stamped(lab):
        value, expected = call(lab, row, ret, params, rng)
        assert value == expected, (row, ret, params)


def test_every_function_begins_as_the_flavour_has_it(lab):
    entry, machine = lab.release.entry, lab.kernel.machine
    head = (ENDBR64 if entry.endbr else b"") + NOPS[5]
    for row, _, _ in stamped(lab):
        assert row.address % 16 == 0
        assert row.site == row.address + entry.site_offset
        front = machine.read(row.address - entry.padding, entry.padding + len(head))
        assert front == NOPS[1] * entry.padding + head, row
        assert lab.kernel.ftrace.records[row.site].ip == row.site
        assert lab.kernel.ftrace.ftrace_location(row.address) == row.site


def test_functions_lie_one_behind_the_other_and_are_listed(lab):
    kernel, rows = lab.kernel, [row for row, _, _ in stamped(lab)]
    for row, after in pairwise(rows):
        function = kernel.function_at(row.address)
        assert (function.name, function.address, function.site, function.btf_id) == (*row[:4],)
        assert row.address + function.size <= after.address - kernel.entry.padding
        symbol = kernel.kallsyms.at(row.address + function.size - 1)
        assert (symbol.name, symbol.address, symbol.size) == (row.name, row.address, function.size)
        assert kernel.machine.images.at(row.address).code == kernel.machine.read(row.address, function.size)
    assert kernel.is_kernel_text(rows[0].address)
    where = f"{rows[0].name}+{kernel.entry.site_offset:#x}"
    assert kernel.machine.describe(rows[0].site) == f"{where}: nop dword ptr [rax + rax]  ; patch site"


def test_counts_name_stamped_functions(lab):
    assert lab.call("slots3", 1, 2, 3).counts.by_function == {"slots3": 5 + lab.release.entry.endbr}


def test_all_functions_are_found_by_type_id_name_and_address(lab):
    population, kernel = lab.population, lab.kernel
    assert len(population.functions) == len(ALL) == 2000
    for row, (name, _, _) in zip(population.select(population.functions.ids), ALL, strict=True):
        assert row.name == name
        assert population.find(row.address) == row
        assert row.key == 0x1_8000_0000 | row.btf_id
        first = population.find(name)
        assert first.address <= row.address
        assert (first == row) == (name != "twice" or row.address == kernel.kallsyms.address("twice"))


def test_of_several_functions_of_a_name_each_is_a_target_of_its_own(make_lab):
    lab = make_lab("6.12", btf=written())
    statics = [row for row in lab.population.select(["twice*"]) if row.name == "twice"]
    assert len({row.address for row in statics}) == 24
    assert [len(lab.target(row).model.args) for row in statics] == [number % 3 for number in range(24)]
    assert lab.population.find("twice") == statics[0]
    seen = []
    with (
        lab.attach(lab.prog("fentry", lambda ctx: seen.append(ctx.args)), statics[5].btf_id) as by_id,
        lab.attach(lab.prog("fentry", lambda ctx: seen.append(ctx.args)), statics[4].address) as by_address,
    ):
        assert by_id.trampoline.target.key == statics[5].key
        assert by_address.trampoline.target.address == statics[4].address
        assert [lab.call(row.address, 30, 12).value for row in statics[3:6]] == [0, 30, 42]
    assert seen == [(30,), (30, 12)]


@pytest.mark.parametrize("kind", ["fentry", "fexit"])
def test_programs_see_arguments_and_return_value(lab, kind):
    seen, rng = [], random.Random(2)
    prog = lab.prog(kind, lambda ctx: seen.append((ctx.slots, ctx.ret if kind == "fexit" else None, ctx.ip)))
    errnos = lab.population.functions.refusals(lab.release)
    sample = [function for function, errno in zip(stamped_all(lab), errnos, strict=True) if function and not errno]
    chosen = [*sample[::40], *(f for f in sample if f[0].name in ("narrow", "twelve_slots", "slots9", "do_exit"))]
    for row, ret, params in chosen:
        if kind == "fexit" and row.name in lab.release.noreturn_deny:
            continue
        link = lab.attach(prog, row)
        value, expected = call(lab, row, ret, params, rng)
        (slots, returned, ip) = seen.pop()
        assert value == expected, row
        assert (len(slots), ip) == (sum(words_of(ret, params)), row.address)
        if ret in ("u64", "ptr"):
            assert sum(slots) % (1 << 64) == expected
            assert returned in (None, expected)
        link.detach()
        assert lab.kernel.machine.read(row.site, 5) == NOPS[5]


def stamped_all(lab):
    there = {row.btf_id: (row, ret, params) for row, ret, params in stamped(lab)}
    return [there.get(btf_id) for btf_id in lab.population.functions.ids]


def test_functions_that_the_kernel_has_keep_their_meaning(lab):
    assert lab.call("bpf_fentry_test5", 11, 12, 13, 14, 15).value == 65
    target = lab.target("bpf_fentry_test5")
    assert [(arg.type, arg.size) for arg in target.model.args][1:3] == [("void *", 8), ("u16", 2)]
    btf_id = written().functions_named("bpf_fentry_test5")[0].id
    assert target.key == 0x1_8000_0000 | btf_id
    with lab.attach(lab.prog("fentry", "xor eax, eax\nret"), btf_id) as link:
        assert f"bpf_trampoline_{target.key}" in lab.kernel.kallsyms
        assert link.trampoline.target.address == lab.kernel.kallsyms.address("bpf_fentry_test5")
        assert lab.call("bpf_fentry_test5", 11, 12, 13, 14, 15).value == 65


def test_host_calls_can_be_traced_and_still_do_what_they_do(lab):
    ran = []
    with lab.attach(lab.prog("fentry", lambda ctx: ran.append(ctx.vcpu.task.name)), "schedule"):
        task = lab.kernel.task("sleeper", "schedule")
        lab.kernel.machine.vcpus[0].run(task)
        assert (task.state, ran) == (TaskState.SLEEPING, ["sleeper"])
        task.wake()
        lab.kernel.machine.vcpus[0].run(task)
    assert task.state is TaskState.DONE


def test_a_trampoline_is_the_same_with_and_without_btf(make_lab):
    labs = [make_lab("6.12"), make_lab("6.12", btf=written())]
    codes = []
    for lab in labs:
        lab.attach(lab.prog("fexit", "xor eax, eax\nret"), "bpf_fentry_test2")
        call = lab.call("bpf_fentry_test2", 40, 2)
        codes.append((call.value, call.counts.instructions, call.counts.by_phase, call.counts.by_function))
    names = [f"bpf_trampoline_{lab.target('bpf_fentry_test2').key}" for lab in labs]
    codes[0][3][names[1]] = codes[0][3].pop(names[0])
    assert codes[0] == codes[1]


def test_globs_select_by_name_within_the_kernel_or_a_module(make_lab):
    lab = make_lab("6.12", btf=written())
    lab.load_testmod()
    select = lab.population.select
    tcp = select(["tcp_*"])
    assert [row.name for row in tcp] == [name for name, _, _ in ALL if name.startswith("tcp_")]
    assert select(["*"]) == sorted(select(lab.population.functions.ids), key=lambda row: row.address)
    assert {row.name for row in select(["slots1[0-2]", "slots?"])} == {f"slots{count}" for count in range(13)}
    # A glob repeats nothing; what is named twice is there twice.
    assert select([tcp[3].name, "tcp_*", tcp[0].btf_id]) == [tcp[3], *tcp[:3], *tcp[4:], tcp[0]]
    module = select(["bpf_testmod:*struct*"])
    assert [row.module for row in module] == ["bpf_testmod"] * 13
    assert select(["*mod:*struct_arg_1"]) == [module[0]]
    assert select(["bpf_testmod_test_struct_arg_1"]) == select(["bpf_testmod:bpf_testmod_test_struct_arg_1"])
    assert lab.target(module[0]).key > 0x1_8000_0000 | len(written()) - 1
    for nothing in ("nobody_*", "bpf_testmod:tcp_*", "tcp_nobody", tcp[0].address + 1, 0xFFFFFFFFBF000000):
        refused(ENOENT, select, ["tcp_*", nothing])
    for btf_id in (tcp[0].btf_id - 1, 0, 1 << 31):
        refused(EINVAL, select, [btf_id])


def test_without_btf_functions_with_a_prototype_are_selected(make_lab):
    lab = make_lab("6.12")
    rows = lab.population.select(["bpf_fentry_test*"])
    assert [row.name for row in rows] == [f"bpf_fentry_test{number}" for number in range(1, 11)]
    assert lab.population.select([row.btf_id for row in rows]) == rows
    assert lab.target(rows[1]) == lab.target(rows[1].address, "int bpf_fentry_test2(int a, u64 b)")
    assert "__bpf_prog_enter" not in {row.name for row in lab.population.select(["*"])}


def test_functions_of_ones_own_come_before_those_of_the_btf(make_lab):
    own = FunctionText("slots3", "mov eax, 7\nret", "int slots3(int a)")
    lab = make_lab("6.12", btf=written(), functions=(AssemblyFunctions((own,)),))
    assert lab.call("slots3").value == 7
    assert lab.kernel.function("slots3").prototype == own.prototype
    assert len(lab.target("slots3").model.args) == 3
    added = lab.kernel.add_functions(FunctionText("after", "jmp slots4", "u64 after(u64 a, u64 b, u64 c, u64 d)"))
    assert added[0].address > max(row.address for row in lab.population.select(["tcp_*"]))
    assert lab.call("after", 1, 2, 3, 4).value == 10
    with pytest.raises(PrototypeError):
        lab.target("slots4", "int slots4(int a)")


EXPECTED = {"migrate_disable": EINVAL, "preempt_count_add": EINVAL, "__bpf_tramp_enter": EINVAL}
WITHOUT_SITE = {"sched_clock", "bpf_get_attach_cookie"}


def errno_of(func, release):
    if func.name in EXPECTED:
        return EXPECTED[func.name]
    if func.name in WITHOUT_SITE:
        return EBUSY
    try:
        model = model_of(func, union_args=release.union_args)
    except KernelError as error:
        return error.errno
    return ENOTSUPP if release.name == "6.1" and model.nr_regs > 6 else 0


def test_attached_and_refused_are_all_functions(lab):
    expected = Counter(errno_of(func, lab.release) for func in written().functions())
    ids, refusals = attachable(lab.release, written())
    assert len(ids) == expected.pop(0)
    assert refusals == expected
    assert len(ids) + sum(refusals.values()) == 2000
    assert {EINVAL, ENOTSUPP, EBUSY} == refusals.keys()
    names = {written().function(btf_id).name for btf_id in ids}
    assert ("slots7" in names) == lab.release.trampoline.stack_args
    assert ("takes_union" in names) == (lab.release.name not in ("6.1", "6.12"))


def test_attaching_is_refused_with_the_error_that_was_counted(lab):
    prog = lab.prog("fentry", "xor eax, eax\nret")
    functions = lab.population.functions
    checked = Counter()
    for btf_id, errno in zip(functions.ids, functions.refusals(lab.release), strict=True):
        if errno and checked[errno] < 60:
            checked[errno] += 1
            refused(errno, lab.attach, prog, btf_id)
    for name in EXPECTED.keys() | WITHOUT_SITE:
        refused(EXPECTED.get(name, EBUSY), lab.attach, prog, name)
    assert not len(lab.trampolines)


@pytest.mark.parametrize("kind", ATTACH_WORDS.values())
def test_functions_that_do_not_return_have_no_exit_programs(lab, kind):
    ids, refusals = attachable(lab.release, lab.population.functions, kind)
    names = {written().function(btf_id).name for btf_id in ids}
    at_entry = kind in (AttachType.TRACE_FENTRY, AttachType.TRACE_FENTRY_MULTI)
    assert ("do_exit" in names) == (at_entry or lab.release.name == "6.1")
    assert ("kthread_exit" in names) == (at_entry or lab.release.name != "6.12")
    # Multi links refuse functions without a patch site before anything is patched.
    assert refusals[EBUSY] == (0 if kind.is_multi else 2)


def test_exit_programs_are_refused_where_a_function_does_not_return(lab):
    prog = lab.prog("fexit", "xor eax, eax\nret")
    if lab.release.noreturn_deny:
        refused(EINVAL, lab.attach, prog, "do_exit")
        refused(EINVAL, lab.attach, prog, lab.population.find("do_exit").address)
    else:
        lab.attach(prog, "do_exit").detach()


@pytest.mark.parametrize("release", KERNELS)
def test_excerpts_of_kernels(make_lab, release):
    btf = Btf.read(FIXTURES / f"{release}.btf.xz")
    functions = BtfFunctions(btf)
    lab = make_lab(release, btf=btf)
    assert lab.population.select(["*"]) == sorted(lab.population.select(functions.ids), key=lambda row: row.address)
    seen = []
    prog = lab.prog("fentry", lambda ctx: seen.append(ctx.args))
    with lab.attach(prog, "vfs_read") as link:
        assert link.trampoline.target.model == model_of(btf.functions_named("vfs_read")[0])
        assert lab.call("vfs_read", 1, 2, 3, 4).value == 10
    assert seen == [(1, 2, 3, 4)]
    for func, errno in zip(btf.functions(), functions.refusals(RELEASES[release]), strict=True):
        assert errno == errno_of(func, lab.release), func.name
        if errno:
            refused(errno, lab.attach, prog, func.id)
        else:
            lab.attach(prog, func.id).detach()
