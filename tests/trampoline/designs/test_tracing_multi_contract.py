"""What programs see under the posted series' callers, what its function and its caller keep, what stays behind."""

import pytest

from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.process_context import PointKind
from emu.kernel.structs import PERCPU, task_struct
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.task import TaskState
from trampoline.bpf.errors import KernelError
from trampoline.bpf.structs import bpf_prog, bpf_prog_aux, bpf_prog_stats

DESIGNS = ("tracing-multi-v2", "tracing-multi-v2-fixed", "tracing-multi-v1")
SOUND = ("tracing-multi-v2-fixed", "tracing-multi-v1")
ENOMEM = 12
KEPT = ("rbx", "rbp", "r12", "r13", "r14", "r15")
NOTHING = "xor eax, eax\nret"
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]

# Calls the function whose address is in rax; gives its result, or 0xbad where a callee-saved register or rsp changed.
PROBE = "\n".join(
    [
        *(f"push {register}" for register in KEPT),
        "sub rsp, 0x18",
        "mov [rsp + 8], rsp",
        *(f"mov {register}, {0x1111 * number:#x}" for number, register in enumerate(KEPT, 1)),
        "call {traced}",
        "cmp rsp, [rsp + 8]",
        "jne probe_{traced}_bad",
        *(
            line
            for number, register in enumerate(KEPT, 1)
            for line in (f"cmp {register}, {0x1111 * number:#x}", "jne probe_{traced}_bad")
        ),
        "probe_{traced}_out:",
        "add rsp, 0x18",
        *(f"pop {register}" for register in reversed(KEPT)),
        "ret",
        "probe_{traced}_bad:",
        "mov eax, 0xbad",
        "jmp probe_{traced}_out",
    ]
)


def state(lab):
    kernel = lab.kernel
    kernel.rcu.settle()

    def text(function):
        padding = kernel.entry.padding if function.site else 0
        return kernel.machine.read(function.address - padding, function.size + padding)

    return (
        {name: text(function) for name, function in kernel.functions.items()},
        sorted(kernel.execmem.images.values()),
        sorted(kernel.percpu.objects.values()),
        sorted(kernel.slab.objects.values()),
        lab.design.mds.memory,
        len(lab.trampolines),
        dict(kernel.ftrace.direct_functions),
        kernel.ftrace.ops,
        kernel.rcu.pending,
    )


@pytest.mark.parametrize("sleepable", [False, True])
@pytest.mark.parametrize("config", ["voluntary", "lazy", "none"])
@pytest.mark.parametrize("design", DESIGNS)
def test_programs_see_what_they_should_in_the_order_of_attaching(make_lab, design, config, sleepable):
    lab = make_lab("6.12", config, design=design)
    before = state(lab)
    for nr_args in range(7):
        traced, seen = f"tramplab_args{nr_args}", []
        args = tuple(range(11, 11 + nr_args))
        original = lab.call(traced, *args).value
        lab.kernel.add_functions(FunctionText(f"probe_{traced}", PROBE.format(traced=traced), traceable=False))
        links, progs = [], []
        for number, kind in enumerate(("fexit", "fentry", "fmod_ret", "fexit", "fentry", "fmod_ret")):

            def run(ctx, kind=kind, seen=seen):
                result = 0 if kind == "fentry" else ctx.ret
                seen.append((kind, ctx.cookie, ctx.ip, ctx.count, ctx.args, result))

            progs.append(lab.prog(f"{kind}_multi", run, sleepable=sleepable))
            links.append(lab.attach_multi(progs[-1], [traced, "bpf_fentry_test1"], cookies=[number, 0]))
        assert lab.call(f"probe_{traced}", *args).value == original
        address = lab.kernel.function(traced).address
        expected = [("fentry", 1, 0), ("fentry", 4, 0), ("fmod_ret", 2, 0), ("fmod_ret", 5, 0)]
        expected += [("fexit", 0, original), ("fexit", 3, original)]
        assert seen == [(kind, cookie, address, nr_args, args, result) for kind, cookie, result in expected]
        for link, prog in zip(links, progs, strict=True):
            link.detach()
            lab.unload(prog)
        assert lab.call(f"probe_{traced}", *args).value == original
    after = state(lab)
    assert after[1:] == before[1:]
    assert {name: after[0][name] for name in before[0]} == before[0]


@pytest.mark.parametrize("nr_args", range(7))
@pytest.mark.parametrize("design", DESIGNS)
def test_fmod_ret_replaces_the_original_and_fexit_sees_it(make_lab, design, nr_args):
    lab, seen = make_lab("6.12", design=design), []
    traced = f"tramplab_args{nr_args}"
    lab.kernel.add_functions(FunctionText(f"probe_{traced}", PROBE.format(traced=traced), traceable=False))
    lab.attach_multi(lab.prog("fmod_ret_multi", lambda ctx: seen.append("first")), [traced])
    lab.attach_multi(lab.prog("fmod_ret_multi", lambda ctx: 1234), [traced])
    lab.attach_multi(lab.prog("fmod_ret_multi", lambda ctx: seen.append("never")), [traced])
    lab.attach_multi(lab.prog("fexit_multi", lambda ctx: seen.append(ctx.ret)), [traced])
    call = lab.call(f"probe_{traced}", *range(nr_args))
    assert (call.value, seen) == (1234, ["first", 1234])
    # What is left of the traced function is its entry.
    function = lab.kernel.function(traced)
    assert not any(function.site < at < function.address + function.size for at in call.counts.by_address)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_program_does_not_run_inside_itself(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []

    def run(ctx):
        ran.append(ctx.ip)
        if len(ran) == 1:
            lab.kernel.machine.vcpus[0].call(lab.kernel.function("bpf_fentry_test1").address, 1)

    for kind in ("fentry_multi", "fexit_multi", "fmod_ret_multi"):
        prog = lab.prog(kind, run)
        ran.clear()
        with lab.attach_multi(prog, NAMES[:2]):
            assert lab.call(NAMES[1], 1, 2).value == 3
        assert (len(ran), lab.programs.misses(prog)) == (1, 1)


@pytest.mark.parametrize("design", DESIGNS)
def test_recursion_detected_is_called(make_lab, design):
    lab, told = make_lab("6.12", design=design), []
    machine = lab.kernel.machine
    prog = lab.prog("fentry_multi", lambda ctx: machine.vcpus[0].call(ctx.ip, 1) and 0)
    aux = bpf_prog.view(machine, prog.address).aux
    callback = machine.host_call("recursion", lambda vcpu: told.append(vcpu.args(1)[0]))
    bpf_prog_aux.view(machine, aux).recursion_detected = callback
    with lab.attach_multi(prog, NAMES[:1]):
        assert lab.call(NAMES[0], 1).value == 2
    assert told == [prog.address]


@pytest.mark.parametrize("sleepable", [False, True])
@pytest.mark.parametrize("config", ["voluntary", "lazy"])
@pytest.mark.parametrize("design", DESIGNS)
def test_statistics_behind_the_static_key(make_lab, design, config, sleepable):
    lab = make_lab("6.12", config, design=design)
    for kind in ("fentry_multi", "fexit_multi", "fmod_ret_multi"):
        prog = lab.prog(kind, lambda ctx: lab.kernel.advance_clock(70), sleepable=sleepable)
        with lab.attach_multi(prog, NAMES[:2]):
            lab.call(NAMES[0], 1)
            lab.stats(enabled=True)
            for _ in range(3):
                lab.kernel.advance_clock(5)
                assert lab.call(NAMES[1], 1, 2).value == 3
            lab.stats(enabled=False)
            lab.call(NAMES[0], 1)
            assert lab.programs.runs(prog) == 3
            nsecs = lab.kernel.percpu.values(prog.stats + bpf_prog_stats.offset("nsecs"))
            assert sum(nsecs) == 3 * 70


@pytest.mark.parametrize("design", SOUND)
def test_a_sleepable_program_sleeps_and_is_waited_for(make_lab, design):
    lab = make_lab("6.12", design=design)
    before = state(lab)
    prog = lab.prog("fexit_multi", "sub rsp, 8\ncall schedule\nadd rsp, 8\nxor eax, eax\nret", sleepable=True)
    link = lab.attach_multi(prog, NAMES[:2])
    task = lab.kernel.task("sleeper", NAMES[1], 20, 22)
    vcpu = lab.kernel.machine.vcpus[0]
    vcpu.run(task)
    view = task_struct.view(lab.kernel.machine, task.address)
    assert (task.state, view.trc_reader_nesting) == (TaskState.SLEEPING, 1)
    link.detach()
    lab.unload(prog)
    assert prog.address in lab.programs.loaded
    task.wake()
    assert vcpu.run(task).value == 42
    assert view.trc_reader_nesting == 0
    lab.kernel.rcu.settle()
    assert prog.address not in lab.programs.loaded
    lab.kernel.slab.free(task.address)
    assert state(lab) == before


@pytest.mark.parametrize("design", SOUND)
def test_metadata_is_held_over_the_original(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []
    link = lab.attach_multi(lab.prog("fexit_multi", lambda ctx: ran.append(ctx.ret)), ["tramplab_sleeps", NAMES[0]])
    task = lab.kernel.task("sleeper", "tramplab_sleeps", 41)
    vcpu = lab.kernel.machine.vcpus[0]
    vcpu.run(task)
    link.detach()
    assert lab.design.mds.memory["kfunc_md"] == 88
    task.wake()
    assert vcpu.run(task).value == 42
    lab.kernel.rcu.settle()
    assert (ran, lab.design.mds.memory["kfunc_md"]) == ([], 0)


def preempt_count(lab):
    return PERCPU.view(lab.kernel.machine, lab.kernel.percpu_areas[0]).preempt_count


@pytest.mark.parametrize("kind", ["fentry_multi", "fexit_multi"])
@pytest.mark.parametrize("design", SOUND)
def test_the_last_link_goes_while_a_cpu_is_anywhere_in_the_caller(make_lab, design, kind):
    # A kernel that can be preempted wherever it does not count itself into a section.
    lab = make_lab("7.2", "lazy", design=design)
    prog, vcpu, preemptible = lab.prog(kind, NOTHING), lab.kernel.machine.vcpus[0], preempt_count(lab)
    step, went_through = 0, False
    while not went_through:
        step += 1
        link = lab.attach_multi(prog, NAMES)
        task = lab.kernel.task("traced", NAMES[3], 1, 2, 3, 4)
        vcpu.run(task, preempt_after=step)
        while task.state is not TaskState.DONE and preempt_count(lab) != preemptible:
            vcpu.run(task, preempt_after=1)
        link.detach()
        went_through = task.state is TaskState.DONE
        if not went_through:
            vcpu.run(task)
        lab.kernel.rcu.settle()
        assert task.value == 10
        assert lab.design.mds.memory["kfunc_md"] == 0
    assert step > 90


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
@pytest.mark.parametrize("design", SOUND)
def test_any_failure_leaves_everything_as_before(make_lab, design, kind):
    lab, ran = make_lab("7.2", design=design), []
    # Three classes have functions before, two of which get more; one is new.
    first = lab.prog("fentry_multi", lambda ctx: ran.append("first"))
    there = lab.attach_multi(first, [NAMES[0], NAMES[1], "tramplab_args2", NAMES[5]])
    prog = lab.prog("fexit_multi", lambda ctx: ran.append("second"))
    wanted = [NAMES[2], NAMES[1], "tramplab_args1", "tramplab_args2"]
    lab.attach_multi(prog, wanted).detach()
    before, nth, link = state(lab), 1, None
    while link is None:
        with lab.kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
            try:
                link = lab.attach_multi(prog, wanted)
            except KernelError:
                assert state(lab) == before
                assert lab.call(NAMES[1], 2, 3).value == 5
                nth += 1
    assert nth >= (3 if kind is PointKind.PATCH else 9)
    attached, nth = state(lab), 1
    while link.attached:
        with lab.kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
            try:
                link.detach()
            except KernelError:
                assert state(lab) == attached
                ran.clear()
                assert lab.call(NAMES[1], 2, 3).value == 5
                assert ran == ["first", "second"]
                nth += 1
    assert state(lab) == before
    there.detach()
    assert not lab.kernel.ftrace.direct_functions


@pytest.mark.parametrize("tracer_first", [True, False])
@pytest.mark.parametrize("design", DESIGNS)
def test_beside_another_user_of_the_site(make_lab, design, tracer_first):
    lab, ran = make_lab("6.12", design=design), []
    tracer = FtraceOps("tracer", lambda ip, parent, ops, regs: ran.append("tracer"))
    site = lab.kernel.function(NAMES[1]).site
    lab.kernel.ftrace.ftrace_set_filter_ip(tracer, site)
    prog = lab.prog("fexit_multi", lambda ctx: ran.append((ctx.args, ctx.ret)))
    if tracer_first:
        lab.kernel.ftrace.register_ftrace_function(tracer)
    link = lab.attach_multi(prog, NAMES)
    if not tracer_first:
        lab.kernel.ftrace.register_ftrace_function(tracer)
    assert lab.call(NAMES[1], 1, 2).value == 3
    assert ran == ["tracer", ((1, 2), 3)]
    link.detach()
    assert lab.call(NAMES[1], 1, 2).value == 3
    assert ran[2:] == ["tracer"]
    lab.kernel.ftrace.unregister_ftrace_function(tracer)


@pytest.mark.parametrize("design", DESIGNS)
def test_modules_are_held(make_lab, design):
    lab, ran = make_lab("6.12", design=design), []
    twin = FunctionText(NAMES[0], "lea eax, [rdi + 100]\nret", f"int {NAMES[0]}(int a)")
    lab.kernel.load_module("twins", AssemblyFunctions((twin,), module="twins"))
    link = lab.attach_multi(lab.prog("fexit_multi", lambda ctx: ran.append(ctx.ret)), [NAMES[0], f"twins:{NAMES[0]}"])
    assert lab.kernel.modules["twins"].refs == 1
    assert (lab.call(NAMES[0], 1).value, lab.call(f"twins:{NAMES[0]}", 1).value, ran) == (2, 101, [2, 101])
    link.detach()
    assert lab.kernel.modules["twins"].refs == 0
