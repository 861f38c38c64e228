"""What is checked before and after the walk over instructions: a kernel of a dozen functions, and tables of answers."""

from dataclasses import replace
from errno import E2BIG, EACCES, EADDRNOTAVAIL, EBADF, EBUSY, EFAULT, EILSEQ, EINVAL, ENOENT, EOPNOTSUPP, EPERM, ESRCH

import pytest
from kernel_releases import RECORDED, RELEASES, kernel_view

from btf_writer import Writer
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.errors import ENOTSUPP
from trampoline.bpf.function_lists import marked, names
from trampoline.bpf.isa.insn import LD_IMM64, Imm64, Insn
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.program import BpfProgram, FuncInfo, LineInfo, MapSpec
from trampoline.bpf.uapi import AttachType, MapType, ProgFlag, ProgType
from trampoline.bpf.verifier.attach_requests import (
    KprobeMulti,
    LinkCreate,
    PerfKprobe,
    PerfTracepoint,
    RawTracepointOpen,
)
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.load.bpf_link_create import Links
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad, bpf_prog_load, check_load_attributes
from trampoline.bpf.verifier.state.env import Capabilities
from trampoline.bpf.verifier.state.result import Verified
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget, check_attach_btf_id
from trampoline.bpf.verifier.target.tracepoints import event_size

RETURN_0 = parse("r0 = 0\nexit")
FENTRY, FEXIT, MODIFY = AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN


@pytest.fixture(scope="module")
def btf():
    w = Writer()
    number, long = w.int("int", 4, 1), w.int("long", 8, 1)
    pointer = w.add(BtfKind.PTR, third=0)
    pair = w.struct("pair", 16, ("a", long, 0), ("b", long, 64))
    big = w.struct("big", 24, ("a", pair, 0), ("b", long, 128))
    meta = w.add(BtfKind.PTR, third=w.struct("bpf_iter_meta", 8, ("seq", pointer, 0)))
    one = (("a", number),)
    for name in (
        "vfs_read", "schedule", "migrate_disable", "__rcu_read_lock", "do_exit", "kthread_exit", "security_file_open",
        "bpf_fentry_test1", "bpf_modify_return_test", "bpf_lsm_file_open", "bpf_lsm_ismaclabel", "bpf_lsm_task_free",
        "bpf_lsm_verify_prog", "__x64_sys_read", "start_kernel", "__fentry__", "twice", "twice", "kprobe_int3_handler",
    ):  # fmt: skip
        w.func(name, number, *one)
    w.func("seven", number, *((f"a{i}", long) for i in range(7)))
    w.func("thirteen", number, *((f"a{i}", long) for i in range(13)))
    w.func("thirteen_slots", number, *((f"a{i}", pair) for i in range(6)), ("last", long))
    w.func("takes_big", number, ("a", big))
    w.func("gives_pair", pair)
    w.func("variadic", number, ("a", number), ("", 0))
    w.func("bpf_iter_task", number, ("meta", meta), ("task", pointer))
    w.func("bpf_iter_other", number, *one)
    for name, count in (("sched_switch", 3), ("sys_enter", 2)):
        proto = w.proto(0, ("data", pointer), *((f"a{i}", pointer) for i in range(count)))
        w.add(BtfKind.TYPEDEF, f"btf_trace_{name}", w.add(BtfKind.PTR, third=proto))
    w.add(BtfKind.TYPEDEF, "not_a_tracepoint", number)
    fields = ("ent", long, 0), ("pid", long, 64), ("prio", number, 128), ("__data", 0, 192)
    w.struct("trace_event_raw_sched_switch", 32, *fields)
    return w.btf()


def id_of(btf, name):
    return next((type_id for type_id in range(1, len(btf)) if btf.type(type_id).name == name), 0)


def program(btf=None, target="", attach=FENTRY, prog_type=ProgType.TRACING, **fields):
    btf_id = id_of(btf, target) if target else 0
    return BpfProgram("test", RETURN_0, prog_type, attach, attach_btf_id=btf_id, **fields)


def answer(check, *args, **fields):
    """(errno, log's line) of a refusal, (0, "") without one."""
    try:
        check(*args, **fields)
    except VerifierError as error:
        return error.errno, error.summary
    return 0, ""


DENIED = "Attaching tracing programs to function '{}' is rejected."
TARGETS = (
    # target, attach type, sleepable, the answer on 6.1, 6.12, 7.2: a line of the log, "" for accepted, ... as before
    ("vfs_read", FENTRY, False, "", ..., ...),
    ("vfs_read", MODIFY, False, "vfs_read() is not modifiable", ..., ...),
    ("vfs_read", FENTRY, True, "vfs_read is not sleepable", ..., ...),
    ("security_file_open", MODIFY, False, "", ..., ...),
    ("security_file_open", MODIFY, True, "security_file_open is not sleepable", ..., ...),
    ("__x64_sys_read", MODIFY, False, "__x64_sys_read() is not modifiable", ..., ""),
    ("__x64_sys_read", FEXIT, True, "__x64_sys_read is not sleepable", ..., ""),
    ("bpf_fentry_test1", FENTRY, True, "bpf_fentry_test1 is not sleepable", "", ""),
    ("bpf_modify_return_test", MODIFY, False, "bpf_modify_return_test() is not modifiable", "", ""),
    ("migrate_disable", FENTRY, False, None, None, DENIED.format("migrate_disable")),
    ("__rcu_read_lock", FENTRY, False, "", None, DENIED.format("__rcu_read_lock")),
    ("do_exit", FENTRY, False, "", ..., ...),
    (
        "do_exit", FEXIT, False, "", "Attaching fexit/fmod_ret to __noreturn functions is rejected.",
        "Attaching fexit/fsession/fmod_ret to __noreturn function 'do_exit' is rejected.",
    ),
    ("kthread_exit", FEXIT, False, "", "Attaching fexit/fmod_ret to __noreturn functions is rejected.", ""),
    ("thirteen", FENTRY, False, "The function thirteen has 13 arguments. Too many.", ..., ...),
    ("thirteen_slots", FENTRY, False, "", ..., ...),
    ("takes_big", FENTRY, False, "The function takes_big arg0 type STRUCT is unsupported.", ..., ...),
    ("gives_pair", FENTRY, False, "The function gives_pair return type STRUCT is unsupported.", ..., ...),
    ("variadic", FENTRY, False, "The function variadic with variable args is unsupported.", ..., ...),
    ("big", FENTRY, False, "attach_btf_id {id} is not a function", ..., ...),
    ("", FENTRY, False, "Tracing programs must provide btf_id", ..., ...),
    ("btf_trace_sched_switch", AttachType.TRACE_RAW_TP, False, "", ..., ...),
    (
        "btf_trace_sched_switch", AttachType.TRACE_RAW_TP, True, "",
        "Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable",
        "Sleepable program cannot attach to non-faultable tracepoint sched_switch",
    ),
    ("vfs_read", AttachType.TRACE_RAW_TP, False, "attach_btf_id {id} is not a typedef", ..., ...),
    (
        "not_a_tracepoint", AttachType.TRACE_RAW_TP, False,
        "attach_btf_id {id} points to wrong type name not_a_tracepoint", ..., ...,
    ),
    ("bpf_iter_task", AttachType.TRACE_ITER, False, "", ..., ...),
    ("bpf_iter_other", AttachType.TRACE_ITER, False, None, None, None),
    ("vfs_read", AttachType.TRACE_FSESSION, False, None, None, ""),
    ("vfs_read", 37, False, None, None, None),
)  # fmt: skip


def per_release(rows):
    """A row for each release; ``...`` is the answer of the release before."""
    flat = []
    for *row, first, second, third in rows:
        second = first if second is ... else second
        said = (first, second, second if third is ... else third)
        flat += [(*row, answer, release) for release, answer in zip(RECORDED, said, strict=True)]
    return flat


@pytest.mark.parametrize(("target", "attach", "sleepable", "said", "release"), per_release(TARGETS))
def test_targets_of_tracing_programs(btf, target, attach, sleepable, said, release):
    flags = ProgFlag.SLEEPABLE if sleepable else 0
    tracing = program(btf, target, attach, flags=flags)
    expected = (EINVAL, (said or "").format(id=tracing.attach_btf_id)) if said != "" else (0, "")
    assert answer(check_attach_btf_id, tracing, kernel_view(release, btf)) == expected


@pytest.mark.parametrize(
    ("hook", "sleepable", "license", "said"),
    [
        ("bpf_lsm_file_open", False, "GPL", ""),
        ("bpf_lsm_file_open", True, "Dual MIT/GPL", ""),
        ("bpf_lsm_file_open", False, "MIT", "LSM programs must have a GPL compatible license"),
        ("bpf_lsm_task_free", True, "GPL", "bpf_lsm_task_free is not sleepable"),
        ("bpf_lsm_ismaclabel", False, "GPL", "attach_btf_id {id} points to disabled hook bpf_lsm_ismaclabel"),
        ("bpf_lsm_verify_prog", False, "GPL", "attach_btf_id {id} points to wrong type name bpf_lsm_verify_prog"),
        ("vfs_read", False, "GPL", "attach_btf_id {id} points to wrong type name vfs_read"),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_hooks_of_lsm_programs(btf, hook, sleepable, license, said, release):
    flags = ProgFlag.SLEEPABLE if sleepable else 0
    lsm = program(btf, hook, AttachType.LSM_MAC, ProgType.LSM, flags=flags, license=license)
    expected = (EINVAL, said.format(id=lsm.attach_btf_id)) if said else (0, "")
    assert answer(check_attach_btf_id, lsm, kernel_view(release, btf)) == expected


def test_a_target_has_the_model_that_its_trampoline_is_made_for(btf):
    target = check_attach_btf_id(program(btf, "vfs_read"), kernel_view("6.12", btf))
    assert (target.name, target.model.arg_sizes, target.model.ret_size) == ("vfs_read", (4,), 4)
    assert check_attach_btf_id(program(prog_type=ProgType.KPROBE, attach=0), kernel_view("6.12", btf)) is None


ATTRIBUTES = (
    ({"prog_type": 0}, EINVAL),
    ({"prog_type": 99}, EINVAL),
    ({"name": "a b"}, EINVAL),
    ({"name": "a_b.c"}, 0),
    ({"flags": 0x3F}, 0),
    ({"flags": 0x100}, EINVAL),
    ({"flags": int(ProgFlag.TOKEN_FD)}, EINVAL),
    ({"attach_btf_id": 1 << 20}, EINVAL),
    ({"prog_type": ProgType.KPROBE, "attach_btf_id": 1}, EINVAL),
    ({"prog_type": ProgType.SYSCALL, "attach": FENTRY}, EINVAL),
    ({"prog_type": ProgType.EXT, "attach": FENTRY}, EINVAL),
    ({"prog_type": ProgType.CGROUP_SKB, "attach": 1}, 0),
    ({"prog_type": ProgType.CGROUP_SKB, "attach": 2}, EINVAL),
    ({"prog_type": ProgType.CGROUP_SOCK, "attach": 0}, 0),
    ({"prog_type": ProgType.KPROBE, "attach_prog": program()}, EINVAL),
)


@pytest.mark.parametrize(("fields", "errno"), ATTRIBUTES)
@pytest.mark.parametrize("release", RELEASES)
def test_load_attributes(btf, fields, errno, release):
    loaded = replace(program(), **fields)
    assert answer(check_load_attributes, loaded, kernel_view(release, btf), Capabilities(), 2)[0] == errno


def test_flags_that_a_release_knows(btf):
    for release, errno in zip(RECORDED, (EINVAL, 0, 0), strict=True):
        kernel = kernel_view(release, btf)
        assert answer(check_load_attributes, program(flags=0x80), kernel, Capabilities(), 2)[0] == errno
    netfilter = program(prog_type=32, attach=45)
    assert answer(check_load_attributes, netfilter, kernel_view("6.1", btf), Capabilities(), 2)[0]


@pytest.mark.parametrize(
    ("prog_type", "capabilities", "insn_cnt", "errno"),
    [
        (ProgType.TRACING, Capabilities(), 0, E2BIG),
        (ProgType.TRACING, Capabilities(), 1_000_000, 0),
        (ProgType.TRACING, Capabilities(), 1_000_001, E2BIG),
        (ProgType.SOCKET_FILTER, Capabilities(bpf=False), 4097, E2BIG),
        (ProgType.SOCKET_FILTER, Capabilities(bpf=False, perfmon=False), 4096, 0),
        (ProgType.TRACING, Capabilities(bpf=False), 2, EPERM),
        (ProgType.TRACING, Capabilities(perfmon=False), 2, EPERM),
        (ProgType.XDP, Capabilities(net_admin=False), 2, EPERM),
        (ProgType.SOCKET_FILTER, Capabilities(net_admin=False, perfmon=False), 2, 0),
    ],
)
def test_capabilities_and_length(btf, prog_type, capabilities, insn_cnt, errno):
    loaded = program(prog_type=prog_type, attach=0)
    assert answer(check_load_attributes, loaded, kernel_view("6.12", btf), capabilities, insn_cnt)[0] == errno


CALLS = parse("call pc+2\nr0 = 0\nexit\nr0 = 0\nexit")


@pytest.mark.parametrize(
    ("funcs", "said"),
    [
        (((0, "main"), (3, "sub")), ""),
        (((0, "main"),), "number of funcs in func_info doesn't match number of subprogs"),
        (((1, "main"), (3, "sub")), "nonzero insn_off 1 for the first func info record"),
        (((0, "main"), (0, "sub")), "same or smaller insn offset (0) than previous func info record (0)"),
        (((0, "main"), (2, "sub")), "func_info BTF section doesn't match subprog layout in BPF program"),
        (((0, "main"), (3, "int")), "invalid type id 1 in func info"),
    ],
)
def test_func_info(btf, funcs, said):
    w = Writer()
    number = w.int("int", 4, 1)
    ids = {"int": number, "main": w.func("main", number, linkage=1), "sub": w.func("sub", number)}
    infos = tuple(FuncInfo(slot, ids[name]) for slot, name in funcs)
    loaded = replace(program(prog_type=ProgType.SOCKET_FILTER, attach=0), insns=CALLS, btf=w.btf(), funcs=infos)
    assert answer(bpf_prog_load, loaded, kernel_view("6.12", btf)) == ((EINVAL, said) if said else (0, ""))


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ((0, 1, 3), ""),
        ((0, 1), "missing bpf_line_info for func#1"),
        ((1, 3), "missing bpf_line_info for func#0"),
        ((0, 3, 3), "Invalid line_info[2].insn_off:3 (prev_offset:3 prog->len:5)"),
        ((0, 3, 5), "Invalid line_info[2].insn_off:5 (prev_offset:3 prog->len:5)"),
    ],
)
def test_line_info(btf, slots, said):
    lines = tuple(LineInfo(slot, "a.c", 1, 1, "") for slot in slots)
    loaded = replace(program(prog_type=ProgType.SOCKET_FILTER, attach=0), insns=CALLS, lines=lines)
    assert answer(bpf_prog_load, loaded, kernel_view("6.12", btf)) == ((EINVAL, said) if said else (0, ""))


def test_maps_of_sleepable_programs(btf):
    insns = (Insn(LD_IMM64, 1, Imm64.MAP_FD), *RETURN_0)
    lpm = MapSpec("m", MapType.LPM_TRIE, 8, 8, 8, flags=1)
    for release, errno in zip(RECORDED, (EINVAL, EINVAL, 0), strict=True):
        kernel = kernel_view(release, btf)
        lsm = program(btf, "bpf_lsm_file_open", AttachType.LSM_MAC, ProgType.LSM, flags=ProgFlag.SLEEPABLE, maps=(lpm,))
        assert answer(bpf_prog_load, replace(lsm, insns=insns), kernel)[0] == errno
        assert answer(bpf_prog_load, replace(lsm, insns=insns, flags=0), kernel)[0] == 0
        assert answer(bpf_prog_load, replace(lsm, insns=insns, maps=()), kernel)[0] == EBADF


def test_maps_of_types_that_a_release_does_not_have(btf):
    insns = (Insn(LD_IMM64, 1, Imm64.MAP_FD), *RETURN_0)
    local = MapSpec("m", MapType.CGRP_STORAGE, 4, 8, 0, flags=1)
    taken = program(prog_type=ProgType.SOCKET_FILTER, attach=0, maps=(local,))
    for release, errno in zip(RECORDED, (EBADF, 0, 0), strict=True):
        assert answer(bpf_prog_load, replace(taken, insns=insns), kernel_view(release, btf))[0] == errno


@pytest.fixture(scope="module")
def replaced():
    w = Writer()
    number = w.int("int", 4, 1)
    context = w.add(BtfKind.PTR, third=w.struct("__sk_buff", 8, ("len", number, 0)))
    main = w.func("main", number, ("skb", context), linkage=1)
    gsub = w.func("gsub", number, ("a", number), linkage=1)
    ssub = w.func("ssub", number, ("a", number))
    funcs = (FuncInfo(0, main), FuncInfo(2, gsub), FuncInfo(4, ssub))
    return BpfProgram("target", RETURN_0 * 3, ProgType.SOCKET_FILTER, btf=w.btf(), funcs=funcs)


@pytest.mark.parametrize(
    ("function", "params", "said"),
    [
        ("gsub", ["int"], ""),
        ("gsub", None, "Program extension requires BTF"),
        ("gsub", ["int", "int"], "new() has 2 args while gsub() has 1 args"),
        ("gsub", ["long"], "arg0 in new() has size 8 while gsub() has 4"),
        ("gsub", ["ctx"], "arg0 in new() is PTR while gsub() has INT"),
        ("main", ["ctx"], ""),
        ("main", ["other"], "arg0 new(struct other *) doesn't match main(struct __sk_buff *)"),
        ("ssub", ["int"], "Cannot replace static functions"),
    ],
)
def test_extensions_fit_what_they_replace(btf, replaced, function, params, said):
    extension = replace(program(prog_type=ProgType.EXT, attach=0), attach_prog=replaced)
    extension = replace(extension, attach_btf_id=id_of(replaced.btf, function))
    if params is not None:
        w = Writer()
        types = {"int": w.int("int", 4, 1), "long": w.int("long", 8, 1)}
        for name, tag in (("ctx", "__sk_buff"), ("other", "other")):
            types[name] = w.add(BtfKind.PTR, third=w.struct(tag, 8, ("a", 1, 0)))
        new = w.func("new", types["int"], *(("", types[param]) for param in params), linkage=1)
        extension = replace(extension, btf=w.btf(), funcs=(FuncInfo(0, new),))
    assert answer(check_attach_btf_id, extension, kernel_view("6.12", btf)) == ((EINVAL, said) if said else (0, ""))


def test_tracing_programs_as_targets(btf, replaced):
    """One level deep since 6.8."""
    w = Writer()
    main = w.func("main", w.int("int", 4, 1), linkage=1)
    first = replace(program(btf, "vfs_read"), btf=w.btf(), funcs=(FuncInfo(0, main),))
    second = replace(first, attach_prog=first, attach_btf_id=main)
    third = replace(second, attach_prog=second)
    nested = "Cannot nest tracing program attach more than once"
    said = {"6.1": ("Cannot recursively attach",) * 2, "6.12": ("", nested)}
    for release, expected in said.items():
        kernel = kernel_view(release, btf)
        assert tuple(answer(check_attach_btf_id, one, kernel)[1] for one in (second, third)) == expected
    extension = replace(first, prog_type=ProgType.EXT, attach=0, attach_prog=first, attach_btf_id=main)
    assert answer(check_attach_btf_id, extension, kernel_view("6.12", btf))[1] == "Cannot extend fentry/fexit"
    modify = replace(first, attach=MODIFY, attach_prog=replaced, attach_btf_id=replaced.funcs[1].type_id)
    said = answer(check_attach_btf_id, modify, kernel_view("6.12", btf))[1]
    assert said == "can't modify return codes of BPF programs"
    missing = replace(first, attach_prog=replaced, attach_btf_id=1)
    assert answer(check_attach_btf_id, missing, kernel_view("6.12", btf))[1] == "Subprog int doesn't exist"
    assert answer(check_attach_btf_id, replace(extension, attach_prog=None, attach_btf_id=id_of(btf, "vfs_read")),
                  kernel_view("6.12", btf))[1] == "Cannot replace kernel functions"  # fmt: skip


def loaded(btf, release, target="", attach=FENTRY, prog_type=ProgType.TRACING, *, read=0, **fields):
    """A program that a kernel has taken, without the walk."""
    taken, kernel = program(btf, target, attach, prog_type, **fields), kernel_view(release, btf)
    return VerifiedLoad(taken, kernel, check_attach_btf_id(taken, kernel), Verified(taken, [], [], max_ctx_offset=read))


KPROBE = {"prog_type": ProgType.KPROBE, "attach": 0}
MULTI = {"prog_type": ProgType.KPROBE, "attach": AttachType.TRACE_KPROBE_MULTI}
RAW = {"prog_type": ProgType.RAW_TRACEPOINT, "attach": 0}
TP = {"prog_type": ProgType.TRACEPOINT, "attach": 0}
ATTACHED = (
    ({"target": "vfs_read"}, LinkCreate(), 0, ..., ...),
    ({"target": "vfs_read"}, RawTracepointOpen(), 0, ..., ...),
    ({"target": "vfs_read"}, RawTracepointOpen("sched_switch"), EINVAL, ..., ...),
    ({"target": "__fentry__"}, LinkCreate(), EBUSY, ..., ...),
    ({"target": "start_kernel"}, LinkCreate(), EINVAL, ..., ...),
    ({"target": "seven"}, LinkCreate(), ENOTSUPP, 0, 0),
    ({"target": "thirteen_slots"}, LinkCreate(), ENOTSUPP, ..., ...),
    ({"target": "vfs_read", "attach": AttachType.LSM_MAC}, LinkCreate(), EINVAL, ..., ...),
    ({"target": "bpf_iter_task", "attach": AttachType.TRACE_ITER}, LinkCreate(), 0, ..., ...),
    ({"target": "bpf_iter_task", "attach": AttachType.TRACE_ITER}, RawTracepointOpen(), EINVAL, ..., ...),
    ({"target": "btf_trace_sched_switch", "attach": AttachType.TRACE_RAW_TP, "read": 24}, LinkCreate(), 0, ..., ...),
    (
        {"target": "btf_trace_sched_switch", "attach": AttachType.TRACE_RAW_TP, "read": 32}, LinkCreate(),
        EINVAL, ..., ...,
    ),
    (RAW, RawTracepointOpen("sched_switch"), 0, ..., ...),
    (RAW, RawTracepointOpen("no_such"), ENOENT, ..., ...),
    (RAW, RawTracepointOpen(), EFAULT, ..., ...),
    (RAW, LinkCreate(), EINVAL, ..., ...),
    (RAW | {"read": 24}, RawTracepointOpen("sys_enter"), EINVAL, ..., ...),
    (KPROBE, RawTracepointOpen("sys_enter"), EINVAL, ..., ...),
    (TP, PerfTracepoint("sched", "sched_switch"), 0, ..., ...),
    (TP | {"read": 20}, PerfTracepoint("sched", "sched_switch"), 0, ..., ...),
    (TP | {"read": 24}, PerfTracepoint("sched", "sched_switch"), EACCES, ..., ...),
    (TP, PerfTracepoint("sched", "no_such"), ENOENT, ..., ...),
    (TP, PerfKprobe("vfs_read"), EINVAL, ..., ...),
    (KPROBE, PerfTracepoint("sched", "sched_switch"), EINVAL, ..., ...),
    (KPROBE, PerfKprobe("vfs_read"), 0, ..., ...),
    (KPROBE, PerfKprobe("vfs_read", 1), EILSEQ, ..., ...),
    (KPROBE, PerfKprobe("vfs_read", 5), 0, EILSEQ, EILSEQ),
    (KPROBE, PerfKprobe("vfs_read", 9), EILSEQ, 0, 0),
    (KPROBE, PerfKprobe("vfs_read", 5, retprobe=True), EINVAL, ..., ...),
    (KPROBE, PerfKprobe("twice"), EADDRNOTAVAIL, ..., ...),
    (KPROBE, PerfKprobe("no_such"), ENOENT, ..., ...),
    (KPROBE, PerfKprobe("jiffies"), EINVAL, ..., ...),
    (KPROBE, PerfKprobe("kprobe_int3_handler"), EINVAL, ..., ...),
    (KPROBE, PerfKprobe("__fentry__"), EINVAL, ..., ...),
    (MULTI, KprobeMulti(("vfs_read", "schedule")), EOPNOTSUPP, 0, 0),
    (MULTI, KprobeMulti(("vfs_read", "no_such")), EOPNOTSUPP, ESRCH, ESRCH),
    (MULTI, KprobeMulti(("__fentry__",)), EOPNOTSUPP, ESRCH, ESRCH),
    (KPROBE, KprobeMulti(("vfs_read",)), EOPNOTSUPP, EINVAL, EINVAL),
)


@pytest.mark.parametrize(("fields", "request_", "errno", "release"), per_release(ATTACHED))
def test_attaching(btf, fields, request_, errno, release):
    one = loaded(btf, release, **fields)
    assert answer(Links(one.kernel, RELEASES[release].trampoline).attach, one, request_)[0] == errno


@pytest.mark.parametrize(("release", "limit"), [("6.1", 38), ("6.12", 38), ("7.2", 36)])
def test_a_function_takes_so_many_programs(btf, release, limit):
    links = Links(kernel_view(release, btf), RELEASES[release].trampoline)
    many = [loaded(btf, release, "vfs_read", kind) for kind in (FENTRY, FEXIT)]
    for number in range(limit):
        links.attach(many[number % 2], LinkCreate())
    assert answer(links.attach, many[0], LinkCreate())[0] == E2BIG
    links.attach(loaded(btf, release, "schedule"), LinkCreate())
    links.detach(many[0])
    links.attach(many[1], LinkCreate())


def test_a_replaced_function_takes_no_other_program(btf, replaced):
    kernel = kernel_view("6.12", btf)
    gsub = replaced.funcs[1].type_id
    target = AttachTarget("gsub", replaced.btf, gsub, prog=replaced)
    extension = BpfProgram("new", RETURN_0, ProgType.EXT, attach_prog=replaced, attach_btf_id=gsub)
    tracing = replace(extension, prog_type=ProgType.TRACING, attach=FENTRY)
    first, second = (VerifiedLoad(one, kernel, target, Verified(one, [], [])) for one in (extension, tracing))
    links = Links(kernel, RELEASES["6.12"].trampoline)
    links.attach(first, LinkCreate())
    assert answer(links.attach, second, LinkCreate())[0] == EBUSY
    links.detach(first)
    links.attach(second, LinkCreate())
    assert answer(links.attach, first, LinkCreate())[0] == EBUSY


def test_the_size_of_an_event_is_where_its_last_field_ends(btf):
    assert event_size(btf, "sched_switch") == 20
    assert event_size(btf, "no_such") is None


def test_lists_by_release():
    versions = [RELEASES[name].version for name in RECORDED]
    assert ["__rcu_read_lock" in names("btf_id_deny", version) for version in versions] == [False, True, True]
    assert ["kthread_exit" in names("noreturn_deny", version) for version in versions] == [False, True, False]
    assert "exc_int3" in names("no_site", versions[0])
    assert "vfs_read" not in names("no_site", versions[0])


@pytest.mark.parametrize(
    ("mark", "holding"),
    [
        ("name", ["6.1", "6.9", "6.12", "6.12.107", "6.18", "7.2"]),
        ("name@6.12", ["6.12", "6.12.107", "6.18", "7.2"]),
        ("name@6.12..7.0", ["6.12", "6.12.107", "6.18"]),
        ("name@6.12..6.12", ["6.12", "6.12.107"]),
        ("name@6.1..6.9", ["6.1", "6.9"]),
    ],
)
def test_marks_hold_for_releases_between_those_that_they_name(mark, holding):
    name, span = marked(mark)
    versions = ["6.1", "6.9", "6.12", "6.12.107", "6.18", "7.2"]
    assert name == "name"
    assert [version for version in versions if KernelVersion.parse(version) in span] == holding


@pytest.mark.parametrize("text", ["", "6", "6.x", "6.12.1.2", "6.-1"])
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match="is not a kernel version"):
        KernelVersion.parse(text)
