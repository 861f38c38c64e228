"""Multi links: one program on many functions, one by one or in a batch; all of them or none."""

import pytest

from emu.events import TextPatched
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import refused
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.designs import DESIGNS as ALL_DESIGNS

DESIGNS = [name for name, design in ALL_DESIGNS.items() if design.links == "any"]
"""The posted series has rules of its own: designs/test_tracing_multi_rules.py."""
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]
ARGS = {name: tuple(range(1, number + 1)) for number, name in enumerate(NAMES, 1)}
VALUES = {"bpf_fentry_test1": 2} | {name: sum(args) for name, args in ARGS.items() if len(args) > 1}
EINVAL, E2BIG, EBUSY, ENOENT, ENOMEM = 22, 7, 16, 2, 12
NOTHING = "xor eax, eax\nret"


@pytest.fixture(params=DESIGNS)
def design(request):
    return request.param


@pytest.fixture(params=["6.1", "6.12", "7.2"])
def multi_lab(request, make_lab, design):
    return make_lab(request.param, design=design)


def state(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    return (
        {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()},
        sorted(kernel.execmem.images.values()),
        sorted(kernel.percpu.objects.values()),
        sorted(name for name in kernel.slab.objects.values() if "ftrace" not in name),
        len(lab.trampolines),
        dict(kernel.ftrace.direct_functions),
        kernel.rcu.pending,
    )


def call_all(lab):
    return {name: lab.call(name, *ARGS[name]).value for name in NAMES}


KINDS = [word for word, kind in ATTACH_WORDS.items() if kind.is_multi]


def test_the_kinds_of_multi_links():
    assert KINDS == ["fentry_multi", "fexit_multi", "fmod_ret_multi", "fsession_multi"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_runs_the_program_with_its_own_cookie(multi_lab, kind):
    lab, seen = multi_lab, []
    prog = lab.prog(kind, lambda ctx: seen.append((ctx.ip, ctx.args, ctx.cookie)))
    before = state(lab)
    if kind == "fsession_multi" and not lab.release.trampoline.fsession:
        refused(EINVAL, lab.attach_multi, prog, NAMES)
        assert state(lab) == before
        return
    link = lab.attach_multi(prog, NAMES, cookies=range(100, 106))
    assert call_all(lab) == VALUES
    runs = 2 if kind == "fsession_multi" else 1
    expected = [
        (lab.kernel.function(name).address, ARGS[name], 100 + number) for number, name in enumerate(NAMES)
    ]
    assert seen == [entry for entry in expected for _ in range(runs)]
    assert link.functions == tuple(NAMES)
    link.detach()
    assert state(lab) == before
    assert call_all(lab) == VALUES
    with pytest.raises(TrampolineError, match="detached already"):
        link.detach()


def test_fmod_ret_results_replace_those_of_each_function(multi_lab):
    lab, seen = multi_lab, []

    def replace(ctx):
        # Nothing has run yet: the result is 0.
        seen.append(ctx.ret)
        return ctx.cookie

    modify = lab.prog("fmod_ret_multi", replace)
    leave = lab.prog("fexit_multi", lambda ctx: seen.append(ctx.ret))
    before = state(lab)
    # A program that gives 0 lets the function run.
    links = [lab.attach_multi(modify, NAMES, cookies=[0, 1002, 1003, 0, 1005, 1006]), lab.attach_multi(leave, NAMES)]
    results = VALUES | {name: 1000 + int(name[-1]) for name in NAMES if name[-1] in "2356"}
    assert call_all(lab) == results
    assert seen == [value for name in NAMES for value in (0, results[name])]
    for link in links:
        link.detach()
    assert call_all(lab) == VALUES
    assert state(lab) == before


def test_arguments_have_the_types_of_each_function(multi_lab):
    lab, seen = multi_lab, []
    lab.attach_multi(lab.prog("fentry_multi", lambda ctx: seen.append(ctx.args)), NAMES)
    lab.call("bpf_fentry_test1", -1 & 0xFFFFFFFF)
    lab.call("bpf_fentry_test3", -4 & 0xFF, 5, 6)
    assert seen == [(-1,), (-4, 5, 6)]


def test_a_batch_is_one_update_and_a_constant_number_of_grace_periods(make_lab):
    costs = {}
    for design in DESIGNS:
        for count in (3, 6):
            lab = make_lab("6.12", design=design)
            prog = lab.prog("fentry_multi", NOTHING)
            ipis = lab.kernel.text_poke.ipis
            link = lab.attach_multi(prog, NAMES[:count])
            costs[design, count] = lab.kernel.text_poke.ipis - ipis
            writes = [e for e in lab.kernel.events if isinstance(e, TextPatched)]
            assert len(writes) == 3 * count
            link.detach()
    assert costs["batched", 3] == costs["batched", 6] == 3
    assert costs["per-function", 6] == 2 * costs["per-function", 3] == 18


@pytest.mark.parametrize("multi_first", [True, False])
def test_a_plain_and_a_multi_link_share_a_function(multi_lab, multi_first):
    lab, ran = multi_lab, []
    before = state(lab)
    multi = lab.prog("fentry_multi", lambda ctx: ran.append("multi"))
    plain = lab.prog("fexit", lambda ctx: ran.append("plain"))
    attach = [lambda: lab.attach_multi(multi, NAMES[:2]), lambda: lab.attach(plain, NAMES[0])]
    links = [step() for step in (attach if multi_first else reversed(attach))]
    assert lab.call(NAMES[0], 1).value == 2
    assert ran == ["multi", "plain"]
    links[0].detach()
    ran.clear()
    assert lab.call(NAMES[0], 1).value == 2
    assert ran == ["plain" if multi_first else "multi"]
    links[1].detach()
    lab.unload(multi)
    lab.unload(plain)
    assert state(lab)[0] == before[0]
    assert len(lab.trampolines) == 0


def test_two_multi_links_run_newest_first(multi_lab):
    lab, ran = multi_lab, []
    for name in ("old", "new"):
        lab.attach_multi(lab.prog("fentry_multi", lambda ctx, n=name: ran.append(n)), NAMES)
    call_all(lab)
    assert ran == ["new", "old"] * len(NAMES)


def test_refusals_leave_nothing_attached(multi_lab):
    lab = multi_lab
    prog = lab.prog("fentry_multi", NOTHING)
    plain = lab.prog("fentry", NOTHING)
    before = state(lab)
    refused(EINVAL, lab.attach_multi, prog, [])
    refused(EINVAL, lab.attach_multi, plain, NAMES)
    refused(EINVAL, lab.attach_multi, prog, [*NAMES, NAMES[0]])
    refused(EINVAL, lab.attach_multi, prog, NAMES, cookies=[1])
    refused(ENOENT, lab.attach_multi, prog, [*NAMES, "no_such_function"])
    refused(EINVAL, lab.attach_multi, prog, [*NAMES, "tramplab_notrace"])
    refused(EINVAL, lab.attach_multi, prog, [*NAMES, "migrate_disable"])
    assert state(lab) == before
    link = lab.attach_multi(prog, NAMES[:3])
    during = state(lab)
    refused(EBUSY, lab.attach_multi, prog, NAMES)
    assert state(lab) == during
    link.detach()
    assert state(lab) == before


def test_a_full_function_at_the_end_refuses_all(make_lab, design):
    lab = make_lab("6.12", design=design)
    for _ in range(38):
        lab.attach(lab.prog("fentry", NOTHING), NAMES[-1])
    prog = lab.prog("fentry_multi", NOTHING)
    before = state(lab)
    refused(E2BIG, lab.attach_multi, prog, NAMES)
    assert state(lab) == before


def test_skip_invalid_reports_what_was_skipped(multi_lab):
    lab, ran = multi_lab, []
    prog = lab.prog("fentry_multi", lambda ctx: ran.append(ctx.cookie))
    names = ["no_such_function", NAMES[0], "tramplab_notrace", NAMES[1]]
    link = lab.attach_multi(prog, names, cookies=[1, 2, 3, 4], skip_invalid=True)
    assert {skipped.name: skipped.errno for skipped in link.skipped} == {
        "no_such_function": ENOENT,
        "tramplab_notrace": EINVAL,
    }
    lab.call(NAMES[0], 1)
    lab.call(NAMES[1], 1, 2)
    assert ran == [2, 4]


def test_module_functions_by_name(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []
    twin = FunctionText(NAMES[0], "lea eax, [rdi + 100]\nret", f"int {NAMES[0]}(int a)")
    lab.kernel.load_module("twins", AssemblyFunctions((twin,), module="twins"))
    prog = lab.prog("fentry_multi", lambda ctx: ran.append(ctx.cookie))
    link = lab.attach_multi(prog, [NAMES[0], f"twins:{NAMES[0]}"], cookies=[1, 2])
    assert (lab.call(NAMES[0], 1).value, lab.call(f"twins:{NAMES[0]}", 1).value) == (2, 101)
    assert ran == [1, 2]
    refused(11, lab.kernel.modules.unload, "twins")
    link.detach()
    lab.kernel.modules.unload("twins")


def test_globs_addresses_and_type_ids(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []
    prog = lab.prog("fentry_multi", lambda ctx: ran.append(ctx.ip))
    address = lab.kernel.function("bpf_modify_return_test").address
    link = lab.attach_multi(prog, ["bpf_fentry_test?", address])
    tests = [f"bpf_fentry_test{number}" for number in range(1, 10)]
    assert link.functions == (*tests, "bpf_modify_return_test")
    link.detach()
    refused(ENOENT, lab.attach_multi, prog, ["nothing_*"])
    refused(EINVAL, lab.attach_multi, prog, [NAMES[0], NAMES[0]])


def test_progress_is_told_once_for_each_function(make_lab, design):
    lab, told = make_lab("6.12", design=design), []
    link = lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES, progress=lambda: told.append("attach"))
    link.detach(lambda: told.append("detach"))
    assert told == ["attach"] * len(NAMES) + ["detach"] * len(NAMES)


def test_an_unknown_design(make_lab):
    with pytest.raises(TrampolineError, match="no design 'fast'"):
        make_lab("6.12", design="fast")
