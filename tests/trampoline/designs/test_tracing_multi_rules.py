"""The posted series' rules: what it refuses, with which code, and what it leaves alone."""

import pytest

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import refused
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Lab
from trampoline.tramp_links import TrampProgType

DESIGNS = ("tracing-multi-v2", "tracing-multi-v2-fixed", "tracing-multi-v1")
SOUND = ("tracing-multi-v2-fixed", "tracing-multi-v1")
EBUSY, EEXIST, EINVAL, ENOENT, E2BIG, EOPNOTSUPP = 16, 17, 22, 2, 7, 95
NOTHING = "xor eax, eax\nret"
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]


def nothing_attached(lab):
    lab.kernel.rcu.settle()
    assert lab.design.mds.memory["kfunc_md"] == lab.design.mds.memory["kfunc_md_tramp_prog"] == 0
    assert not lab.kernel.ftrace.direct_functions
    return True


@pytest.fixture(params=DESIGNS)
def series(request, make_lab) -> Lab:
    return make_lab("6.12", design=request.param)


@pytest.mark.parametrize("design", SOUND)
def test_a_program_twice(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []
    prog = lab.prog("fexit_multi", lambda ctx: ran.append(ctx.ret))
    link = lab.attach_multi(prog, NAMES[:2])
    refused(EEXIST, lab.attach_multi, prog, [NAMES[2], NAMES[1], NAMES[3]])
    lab.call(NAMES[1], 1, 2)
    assert ran == [3]
    # Another program is another matter.
    others = [lab.attach_multi(lab.prog(kind, NOTHING), NAMES[:2]) for kind in ("fentry_multi", "fexit_multi")]
    for one in (link, *others):
        one.detach()
    assert nothing_attached(lab)


@pytest.mark.parametrize("design", SOUND)
def test_a_function_under_two_names(make_lab, design):
    lab = make_lab("6.12", design=design)
    address = lab.kernel.function(NAMES[0]).address
    refused(EEXIST, lab.attach_multi, lab.prog("fentry_multi", NOTHING), [NAMES[0], address])
    assert nothing_attached(lab)


@pytest.mark.parametrize("plain", ["fentry", "fexit", "fmod_ret", "lsm"])
def test_plain_programs_and_multi_links_keep_apart(series, plain):
    ran = []
    multi, single = series.prog("fentry_multi", NOTHING), series.prog(plain, lambda ctx: ran.append(ctx.args))
    link = series.attach(single, NAMES[1])
    refused(EEXIST, series.attach_multi, multi, NAMES)
    assert series.call(NAMES[1], 1, 2).value == 3
    assert ran == [(1, 2)]
    link.detach()
    many = series.attach_multi(multi, NAMES)
    refused(EEXIST, series.attach, single, NAMES[1])
    # Another function is free.
    with series.attach(single, "tramplab_args2"):
        series.call("tramplab_args2", 5, 6)
    assert ran[1:] == [(5, 6)]
    many.detach()
    assert nothing_attached(series)


def test_programs_are_no_targets(series):
    refused(EOPNOTSUPP, series.attach_multi, series.prog("fentry_multi", NOTHING), [series.prog("fentry", NOTHING)])


def test_more_than_six_argument_slots(series):
    series.load_testmod()
    for kind in ("fentry_multi", "fexit_multi", "fmod_ret_multi"):
        prog = series.prog(kind, NOTHING)
        refused(EOPNOTSUPP, series.attach_multi, prog, [NAMES[0], "tramplab_args7"])
        with series.attach_multi(prog, ["tramplab_args7", NAMES[0]], skip_invalid=True) as link:
            assert [(left.name, left.errno) for left in link.skipped] == [("tramplab_args7", EOPNOTSUPP)]
    assert nothing_attached(series)


def test_structs_by_value_count_as_slots(series):
    series.load_testmod()
    seen = []
    name = "bpf_testmod:bpf_testmod_test_struct_arg_1"
    prog = series.prog("fexit_multi", lambda ctx: seen.append((ctx.count, ctx.args, ctx.ret)))
    with series.attach_multi(prog, [name]):
        assert series.call(name, 1, 2, 3, 4).value == 10
    assert seen == [(4, ((1).to_bytes(8, "little") + (2).to_bytes(8, "little"), 3, 4), 10)]


@pytest.mark.parametrize("flavour", ["6.12", "7.2"])
@pytest.mark.parametrize("design", DESIGNS)
def test_fsession(make_lab, design, flavour):
    lab = make_lab(flavour, design=design)
    refused(EINVAL, lab.attach_multi, lab.prog("fsession_multi", NOTHING), NAMES)
    assert nothing_attached(lab)


def test_what_is_no_multi_program(series):
    for kind in ("fentry", "fexit", "fmod_ret", "lsm", "lsm_cgroup", "fsession"):
        refused(EINVAL, series.attach_multi, series.prog(kind, NOTHING), NAMES)
    prog = series.prog("fentry_multi", NOTHING)
    refused(EINVAL, series.attach_multi, prog, [])
    refused(EINVAL, series.attach_multi, prog, NAMES[:2], cookies=[1])
    refused(EINVAL, series.attach_multi, prog, ["tramplab_notrace"])
    refused(ENOENT, series.attach_multi, prog, ["no_such_function"])
    assert nothing_attached(series)


@pytest.mark.parametrize("design", SOUND)
def test_the_limit_of_programs(make_lab, design):
    for flavour, most in (("6.12", 38), ("7.2", 36)):
        lab = make_lab(flavour, design=design)
        kinds = ("fentry_multi", "fexit_multi", "fmod_ret_multi")
        for number in range(most):
            lab.attach_multi(lab.prog(kinds[number % 3], NOTHING), [NAMES[0]])
        refused(E2BIG, lab.attach_multi, lab.prog("fentry_multi", NOTHING), [NAMES[1], NAMES[0]])
        assert len(lab.design.mds.programs(lab.kernel.function(NAMES[0]).address, TrampProgType.FENTRY)) == -(
            -most // 3
        )
        assert not lab.design.mds.find(lab.kernel.function(NAMES[1]).address)


def test_without_padding_the_first_version_is_refused(make_lab):
    lab = make_lab("6.1", design="tracing-multi-v1")
    refused(EOPNOTSUPP, lab.attach_multi, lab.prog("fentry_multi", NOTHING), NAMES)
    with lab.attach(lab.prog("fentry", NOTHING), NAMES[0]):
        assert lab.call(NAMES[0], 1).value == 2
    for design in ("tracing-multi-v2", "tracing-multi-v2-fixed"):
        lab = make_lab("6.1", design=design)
        with lab.attach_multi(lab.prog("fexit_multi", NOTHING), NAMES):
            assert lab.call(NAMES[3], 1, 2, 3, 4).value == 10


def test_somebody_elses_direct_caller(make_lab):
    lab = make_lab("6.12", design="tracing-multi-v2-fixed")
    ops = FtraceOps("somebody else")
    lab.kernel.ftrace.ftrace_set_filter_ip(ops, lab.kernel.function(NAMES[2]).site)
    lab.kernel.ftrace.register_ftrace_direct(ops, lab.kernel.kallsyms.address("bpf_global_caller_3"))
    refused(EBUSY, lab.attach_multi, lab.prog("fentry_multi", NOTHING), NAMES)
    lab.kernel.rcu.settle()
    assert (len(lab.kernel.ftrace.direct_functions), lab.design.mds.memory["kfunc_md"]) == (1, 0)


def test_a_class_has_one_ops_which_is_reset(make_lab):
    lab = make_lab("6.12", design="tracing-multi-v2-fixed")
    sites = {name: lab.kernel.function(name).site for name in (*NAMES, "tramplab_args2", "tramplab_args0")}
    first = lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES[:3])
    ops = {min(ops.filter): ops for ops in lab.kernel.ftrace.ops}
    assert [ops.filter for ops in lab.kernel.ftrace.ops] == [{sites[name]} for name in NAMES[:3]]
    second = lab.attach_multi(lab.prog("fentry_multi", NOTHING), ["tramplab_args2", "tramplab_args0", NAMES[1]])
    assert ops[sites[NAMES[1]]].filter == {sites[NAMES[1]], sites["tramplab_args2"]}
    assert len(lab.kernel.ftrace.ops) == 4
    first.detach()
    assert sorted(map(len, (ops.filter for ops in lab.kernel.ftrace.ops))) == [1, 2]
    second.detach()
    assert lab.kernel.ftrace.ops == ()


def test_the_first_version_has_one_ops(make_lab):
    lab = make_lab("6.12", design="tracing-multi-v1")
    with lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES):
        assert [len(ops.filter) for ops in lab.kernel.ftrace.ops] == [6]


@pytest.mark.parametrize("design", SOUND)
def test_livepatch_and_global_callers_exclude_each_other(make_lab, design):
    lab = make_lab("6.12", design=design)
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    patch = LivePatch(lab.kernel, NAMES[0], "instead")
    prog = lab.prog("fexit_multi", NOTHING)
    link = lab.attach_multi(prog, NAMES)
    refused(EBUSY, patch.enable)
    link.detach()
    patch.enable()
    refused(EBUSY, lab.attach_multi, prog, NAMES)
    assert lab.call(NAMES[0], 1).value == 1007
    patch.disable()
    assert nothing_attached(lab)


def test_a_look_up_must_find_the_function(make_lab):
    odd = FunctionText("odd", "lea eax, [rdi + 1]\nret", "int odd(int a)", address=0xFFFFFFFF81400008)
    lab = make_lab("6.12", design="tracing-multi-v2-fixed", functions=(AssemblyFunctions((odd,)),))
    refused(EOPNOTSUPP, lab.attach_multi, lab.prog("fentry_multi", NOTHING), ["odd"])


def test_stubs_are_the_kernels_own_text(make_lab):
    lab = make_lab("6.12", design="tracing-multi-v2")
    for name in (*(f"bpf_global_caller_{count}" for count in range(7)), "bpf_global_caller_0_run"):
        function = lab.kernel.function(name)
        assert lab.kernel.is_kernel_text(function.address)
        assert function.site is None
    assert make_lab("6.12", design="tracing-multi-v1").kernel.function("bpf_global_caller").site is None


def test_detaching_twice(series):
    link = series.attach_multi(series.prog("fentry_multi", NOTHING), NAMES)
    link.detach()
    with pytest.raises(TrampolineError, match="detached"):
        link.detach()
