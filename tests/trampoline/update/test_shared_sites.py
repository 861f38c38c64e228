"""Trampolines on sites that other ftrace users have as well: values, order, arguments, what is left."""

import pytest
from kernel_releases import RELEASES

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import FunctionText
from trampoline.bpf.errors import KernelError
from trampoline.image.generator import TrampFlag

pytestmark = pytest.mark.slow

EAGAIN, EBUSY, ENOMEM = 11, 16, 12
SAVE_REGS = FtraceOpsFlag.SAVE_REGS
DESIGNS = ("per-function", "generic", "specialised")
"""Batched is between the first two: a function's own images, one ftrace_ops for all."""
KINDS = ("fentry", "fexit", "fmod_ret", "fsession")
PAIRS = [(flavour, kind) for flavour in RELEASES for kind in KINDS if kind != "fsession" or flavour == "7.2"]
NAME = "bpf_fentry_test6"
ARGS, SUM = (1, 2, 3, 4, 5, 6), 21


def state(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    text = {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()}
    return (
        text, dict(kernel.execmem.images), sorted(kernel.slab.objects.values()), dict(kernel.percpu.objects),
        len(lab.trampolines), kernel.ftrace.ops, dict(kernel.ftrace.direct_functions), kernel.rcu.pending,
        len(kernel.kallsyms),
    )  # fmt: skip


@pytest.fixture(params=[(*pair, design) for pair in PAIRS for design in DESIGNS], ids="-".join)
def case(request, make_lab):
    """A laboratory, a program of one kind, and what ran: the program with its arguments and its view of the result."""
    flavour, kind, design = request.param
    lab, ran = make_lab(flavour, design=design), []

    def program(ctx):
        ran.append((kind, ctx.args, ctx.ret if kind in ("fexit", "fsession") else None))

    return lab, lab.prog(kind, program, name="program"), ran, kind


def expected(kind, value):
    """What the program does in a call that returns ``value``."""
    if kind == "fsession":
        return [(kind, ARGS, 0), (kind, ARGS, value)]
    return [(kind, ARGS, value if kind == "fexit" else None)]


@pytest.fixture
def user(case):
    """Another ftrace user on the function."""
    lab, _, ran, _ = case

    def make(flags=SAVE_REGS, name="other"):
        ops = FtraceOps(name, lambda ip, parent, ops, regs: ran.append((ops.name, regs.di, regs.r9)), flags)
        lab.kernel.ftrace.ftrace_set_filter_ip(ops, lab.kernel.function(NAME).address)
        return ops

    return make


def call(lab, ran):
    ran.clear()
    before = lab.call(NAME, *ARGS)
    return before.value, list(ran)


@pytest.mark.parametrize("first", ["trampoline", "other"])
@pytest.mark.parametrize("last", ["trampoline", "other"])
@pytest.mark.parametrize("flags", [FtraceOpsFlag(0), SAVE_REGS])
def test_every_user_runs_and_the_trampoline_last(case, user, first, last, flags):
    lab, prog, ran, kind = case
    ftrace, before = lab.kernel.ftrace, state(lab)
    record = ftrace.records[lab.kernel.function(NAME).site]
    other, link = user(flags), None
    alone = {"trampoline": expected(kind, SUM), "other": [("other", 1, 6)]}
    for comes in (first, "other" if first == "trampoline" else "trampoline"):
        if comes == "other":
            ftrace.register_ftrace_function(other)
        else:
            link = lab.attach(prog, NAME)
        if comes == first:
            assert call(lab, ran) == (SUM, alone[comes])
            straight = lab.kernel.machine.read(record.ip, 5)
    assert record.address == lab.kernel.kallsyms.address("ftrace_regs_caller")
    assert lab.kernel.machine.read(record.ip, 1) == b"\xe8"
    assert call(lab, ran) == (SUM, alone["other"] + alone["trampoline"])
    if last == "other":
        link.detach()
    else:
        ftrace.unregister_ftrace_function(other)
    assert call(lab, ran) == (SUM, alone[last])
    if first == last:
        assert lab.kernel.machine.read(record.ip, 5) == straight
    if last == "other":
        ftrace.unregister_ftrace_function(other)
    else:
        link.detach()
    assert call(lab, ran) == (SUM, [])
    assert state(lab) == before


def test_programs_come_and_go_while_the_site_is_shared(case, user):
    lab, prog, ran, kind = case
    before = state(lab)
    other = user()
    lab.kernel.ftrace.register_ftrace_function(other)
    programs = [lab.prog(k, lambda ctx, k=k: ran.append(k), name=f"more {k}") for k in ("fexit", "fentry", "fmod_ret")]
    links = [lab.attach(prog, NAME)]
    for number, more in enumerate(programs):
        links.append(lab.attach(more, NAME))
        value, saw = call(lab, ran)
        assert (value, len(saw)) == (SUM, 1 + len(expected(kind, SUM)) + number + 1)
        assert saw[0] == ("other", 1, 6)
    for link in reversed(links):
        link.detach()
        assert call(lab, ran)[0] == SUM
    lab.kernel.ftrace.unregister_ftrace_function(other)
    for more in programs:
        lab.unload(more)
    assert state(lab) == before


def test_only_the_return_into_the_direct_caller_is_out_of_step(case, user):
    """ftrace_regs_caller reaches a direct address by ret; its own call makes up for that, so one return is off."""
    lab, prog, _, _ = case
    link = lab.attach(prog, NAME)
    straight = lab.call(NAME, *ARGS).counts.unbalanced_returns
    other = user()
    lab.kernel.ftrace.register_ftrace_function(other)
    assert lab.call(NAME, *ARGS).counts.unbalanced_returns == straight + 1
    lab.kernel.ftrace.unregister_ftrace_function(other)
    assert lab.call(NAME, *ARGS).counts.unbalanced_returns == straight
    link.detach()


@pytest.mark.parametrize("flavour", ["6.12", "7.2"])
@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret"])
def test_stack_arguments_through_the_stub(make_lab, flavour, kind):
    lab, seen = make_lab(flavour), []
    lab.load_testmod()
    args = tuple(range(16, 27))
    lab.attach(lab.prog(kind, lambda ctx: seen.append(ctx.args)), "bpf_testmod_fentry_test11")
    site = lab.kernel.function("bpf_testmod_fentry_test11").site
    lab.kernel.ftrace.register_ftrace_function(FtraceOps("other", "ftrace_stub", filter={site}))
    assert lab.call("bpf_testmod_fentry_test11", *args[:6], stack_args=args[6:]).value == 231
    assert seen == [args]


@pytest.mark.parametrize("flavour", RELEASES)
def test_an_fmod_ret_result_skips_the_original_through_the_stub(make_lab, flavour):
    lab = make_lab(flavour)
    lab.attach(lab.prog("fmod_ret", lambda ctx: 1234), NAME)
    site = lab.kernel.function(NAME).site
    lab.kernel.ftrace.register_ftrace_function(FtraceOps("other", "ftrace_stub", filter={site}))
    assert lab.call(NAME, *ARGS).value == 1234


# Livepatch ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def patch(case):
    lab = case[0]
    lab.kernel.add_functions(FunctionText("instead", "lea eax, [rdi + r9 + 1000]\nret", traceable=False))
    return LivePatch(lab.kernel, NAME, "instead")


PATCHED = 1007


def site_of(lab):
    return lab.kernel.machine.read(lab.kernel.function(NAME).site, 5)


@pytest.mark.parametrize("patched_first", [True, False])
@pytest.mark.parametrize("patched_last", [True, False])
def test_with_livepatch(case, patch, patched_first, patched_last):
    lab, prog, ran, kind = case
    before = state(lab)
    if patched_first:
        patch.enable()
        link = lab.attach(prog, NAME)
    else:
        link = lab.attach(prog, NAME)
        straight = link.trampoline.flags
        patch.enable()
    assert call(lab, ran) == (PATCHED, expected(kind, PATCHED))
    shares = kind != "fentry"
    flags = link.trampoline.flags
    if lab.design.name == "per-function":
        assert bool(flags & TrampFlag.ORIG_STACK) == shares
        # A trampoline that must find the patched address on the stack is called, not jumped to.
        assert bool(flags & TrampFlag.SKIP_FRAME) == shares
    if patched_last:
        link.detach()
        assert call(lab, ran) == (PATCHED, [])
        patch.disable()
    else:
        patch.disable()
        assert call(lab, ran) == (SUM, expected(kind, SUM))
        assert not link.trampoline.flags & (TrampFlag.ORIG_STACK | TrampFlag.SHARE_IPMODIFY)
        if not patched_first:
            assert link.trampoline.flags == straight
        link.detach()
    assert call(lab, ran) == (SUM, [])
    assert state(lab) == before


def test_a_program_that_calls_the_original_joins_fentry_under_livepatch(make_lab):
    # 3e9a18e1c3e9: a modify did not negotiate, so the new image called the unpatched original.
    lab, ran = make_lab("6.12"), []
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    patch = LivePatch(lab.kernel, NAME, "instead")
    patch.enable()
    entry = lab.attach(lab.prog("fentry", lambda ctx: ran.append("entry")), NAME)
    assert not entry.trampoline.flags & TrampFlag.SHARE_IPMODIFY
    leave = lab.attach(lab.prog("fexit", lambda ctx: ran.append(ctx.ret)), NAME)
    assert call(lab, ran) == (PATCHED, ["entry", PATCHED])
    leave.detach()
    assert call(lab, ran) == (PATCHED, ["entry"])
    patch.disable()
    assert call(lab, ran) == (SUM, ["entry"])


def test_a_busy_trampoline_makes_livepatch_try_again_later(make_lab):
    lab = make_lab("6.12")
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    link = lab.attach(lab.prog("fexit", lambda ctx: None), NAME)
    patch = LivePatch(lab.kernel, NAME, "instead")
    before, now = state(lab), lab.kernel.rcu.now_ns
    with link.trampoline.mutex, pytest.raises(KernelError) as caught:
        patch.enable()
    assert caught.value.errno == EAGAIN
    # msleep(1), and no other attempt.
    assert lab.kernel.rcu.now_ns - now == 1_000_000
    assert state(lab) == before
    patch.enable()
    assert lab.call(NAME, *ARGS).value == PATCHED


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
@pytest.mark.parametrize("prog_kind", ["fentry", "fexit"])
def test_attaching_under_livepatch_may_fail_at_every_step(make_lab, kind, prog_kind):
    lab = make_lab("7.2")
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    LivePatch(lab.kernel, NAME, "instead").enable()
    prog = lab.prog(prog_kind, lambda ctx: None)
    before, nth = state(lab), 1
    while failed := fails_at(lab, kind, nth, lambda: lab.attach(prog, NAME)):
        assert (failed, state(lab), lab.call(NAME, *ARGS).value) == (ENOMEM, before, PATCHED)
        nth += 1
    assert nth > 1
    assert lab.call(NAME, *ARGS).value == PATCHED


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
@pytest.mark.parametrize("prog_kind", ["fentry", "fexit"])
def test_livepatch_may_fail_at_every_step(make_lab, kind, prog_kind):
    lab = make_lab("7.2")
    lab.kernel.add_functions(FunctionText("instead", "mov eax, 1007\nret", traceable=False))
    patch = LivePatch(lab.kernel, NAME, "instead")
    link = lab.attach(lab.prog(prog_kind, lambda ctx: None), NAME)
    before, flags, nth = movable_state(lab), link.trampoline.flags, 1
    while failed := fails_at(lab, kind, nth, patch.enable):
        assert (failed, movable_state(lab), lab.call(NAME, *ARGS).value) == (ENOMEM, before, SUM)
        # An image that was made anew before the failure is made anew once more, as it was, if nothing fails then.
        assert link.trampoline.flags == flags
        nth += 1
    assert nth > 1
    assert lab.call(NAME, *ARGS).value == PATCHED


def fails_at(lab, kind, nth, operation):
    """The error code of an operation whose ``nth`` point of a kind fails, 0 if it has no such point."""
    with lab.kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
        try:
            operation()
        except KernelError as error:
            return error.errno
    return 0


def movable_state(lab):
    """State without the addresses of images."""
    _, images, objects, percpu, *rest, _, pending, symbols = state(lab)
    return sorted(images.values()), objects, sorted(percpu.values()), rest[0], pending, symbols
