"""Attaching, calling and detaching: what programs see, what comes back, what is left."""

import pytest
from kernel_releases import RELEASES

from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import refused
from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.uapi import AttachType
from trampoline.lab import Lab

EINVAL, EBUSY, E2BIG, ENOENT, ENOMEM, ENOTSUPP, ERANGE = 22, 16, 7, 2, 12, 524, 34
NOTHING = "xor eax, eax\nret"


def state(lab: Lab):
    """What attaching changes: text, images, objects, links."""
    kernel = lab.kernel
    kernel.rcu.settle()
    text = {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()}
    return (
        text, dict(kernel.execmem.images), dict(kernel.slab.objects), dict(kernel.percpu.objects), len(lab.trampolines),
        dict(kernel.ftrace.direct_functions), kernel.rcu.pending, len(kernel.kallsyms),
    )  # fmt: skip


@pytest.fixture(params=RELEASES)
def any_lab(request, make_lab):
    return make_lab(request.param)


def test_a_program_sees_arguments_ip_and_cookie(any_lab):
    seen = []
    prog = any_lab.prog("fentry", lambda ctx: seen.append((ctx.args, ctx.ip, ctx.cookie, ctx.count)))
    before = state(any_lab)
    with any_lab.attach(prog, "bpf_fentry_test3", cookie=77):
        assert any_lab.call("bpf_fentry_test3", -4 & 0xFF, 5, 6).value == 7
    address = any_lab.kernel.function("bpf_fentry_test3").address
    assert seen == [((-4, 5, 6), address, 77, 3)]
    assert state(any_lab) == before
    any_lab.call("bpf_fentry_test3", 1, 2, 3)
    assert len(seen) == 1


def test_a_program_on_two_functions_sees_the_arguments_of_each(any_lab):
    seen = []
    prog = any_lab.prog("fentry", lambda ctx: seen.append(ctx.args))
    any_lab.attach(prog, "bpf_fentry_test3")
    any_lab.attach(prog, "bpf_fentry_test1")
    any_lab.call("bpf_fentry_test3", -4 & 0xFF, 5, 6)
    any_lab.call("bpf_fentry_test1", -1 & 0xFFFFFFFF)
    assert seen == [(-4, 5, 6), (-1,)]


def test_python_programs_come_and_go_without_end(lab):
    before = state(lab)
    for _ in range(2000):
        lab.unload(lab.prog("fentry", lambda ctx: 0))
    assert state(lab) == before


def test_a_program_that_cannot_be_loaded_leaves_nothing(lab):
    before = state(lab)
    for code in (NOTHING, b"\x31\xc0\xc3", lambda ctx: 0):
        nth, prog = 1, None
        while prog is None:
            with lab.kernel.process.fail_at(PointKind.ALLOC, nth, lambda what: KernelError(ENOMEM, what)):
                try:
                    prog = lab.prog("fentry", code)
                except KernelError:
                    assert state(lab) == before
                    nth += 1
        assert nth > 4
        lab.unload(prog)
    assert state(lab) == before


def test_fexit_sees_the_return_value(any_lab):
    seen = []
    with any_lab.attach(any_lab.prog("fexit", lambda ctx: seen.append(ctx.ret)), "bpf_fentry_test2"):
        assert any_lab.call("bpf_fentry_test2", 2, -7 & (1 << 64) - 1).value == -5 & 0xFFFFFFFF
    assert seen == [-5]


@pytest.mark.parametrize("result", [0, 1234, -22])
def test_fmod_ret_skips_the_original_unless_it_returns_0(any_lab, result):
    seen, cell = [], any_lab.kernel.slab.alloc(16, "b")
    any_lab.kernel.machine.write_u32(cell, 2)
    links = [
        any_lab.attach(any_lab.prog("fexit", lambda ctx: seen.append(ctx.ret)), "bpf_modify_return_test"),
        any_lab.attach(any_lab.prog("fmod_ret", lambda ctx: result), "bpf_modify_return_test"),
    ]
    value = any_lab.call("bpf_modify_return_test", 1, cell).value
    side_effect = any_lab.kernel.machine.read_u32(cell) - 2
    assert (value & 0xFFFFFFFF, side_effect) == ((result & 0xFFFFFFFF, 0) if result else (4, 1))
    assert seen == [result or 4]
    for link in links:
        link.detach()
    assert any_lab.call("bpf_modify_return_test", 1, cell).value == 1 + any_lab.kernel.machine.read_u32(cell)


def test_the_first_non_zero_result_ends_the_fmod_ret_programs(lab):
    ran, cell = [], lab.kernel.slab.alloc(16, "b")
    for name, result in (("old", 5), ("middle", 9), ("new", 0)):
        lab.attach(lab.prog("fmod_ret", lambda ctx, n=name, r=result: ran.append(n) or r), "bpf_modify_return_test")
    assert lab.call("bpf_modify_return_test", 1, cell).value == 9
    assert ran == ["new", "middle"]


def test_order_newest_first_within_a_kind(any_lab):
    ran = []
    for name, kind in (("e1", "fentry"), ("x1", "fexit"), ("m1", "fmod_ret"), ("e2", "fentry"), ("x2", "fexit")):
        any_lab.attach(any_lab.prog(kind, lambda ctx, n=name: ran.append(n)), "bpf_fentry_test1")
    any_lab.call("bpf_fentry_test1", 1)
    assert ran == ["e2", "e1", "m1", "x2", "x1"]


def test_fsession_runs_on_both_sides(make_lab):
    lab, ran = make_lab("7.2"), []
    link = lab.attach(lab.prog("fsession", lambda ctx: ran.append(ctx.ret)), "bpf_fentry_test1")
    assert lab.call("bpf_fentry_test1", 41).value == 42
    assert ran == [0, 42]
    link.detach()
    older = make_lab("6.12")
    refused(EINVAL, older.attach, older.prog("fsession", NOTHING), "bpf_fentry_test1")


@pytest.mark.parametrize("flavour", ["6.12", "7.2"])
@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret"])
@pytest.mark.parametrize(
    ("function", "args", "stack", "seen", "value"),
    [
        ("bpf_testmod_fentry_test7", (16, 17, 18, 19, 20, 21), (22,), (16, 17, 18, 19, 20, 21, 22), 133),
        (
            "bpf_testmod_fentry_test11", (16, 17, 18, 19, 20, 21), (22, 23, 24, 25, 26),
            (16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26), 231,
        ),
        ("bpf_testmod_test_struct_arg_1", (2, 3, 1, 4), (), (bytes([2] + [0] * 7 + [3] + [0] * 7), 1, 4), 10),
        (
            "bpf_testmod_test_struct_arg_7", (16, 17, 18, 19, 20), (21, 22),
            (16, 17, 18, 19, 20, bytes([21] + [0] * 7 + [22] + [0] * 7)), 133,
        ),
        (
            "bpf_testmod_test_struct_arg_8", (16, 17, 18, 19, 20, 23), (21, 22),
            (16, 17, 18, 19, 20, bytes([21] + [0] * 7 + [22] + [0] * 7), 23), 156,
        ),
    ],
)  # fmt: skip
def test_many_and_struct_arguments(make_lab, flavour, kind, function, args, stack, seen, value):
    lab, got = make_lab(flavour), []
    lab.load_testmod()
    with lab.attach(lab.prog(kind, lambda ctx: got.append(ctx.args)), function):
        assert lab.call(function, *args, stack_args=stack).value == value
    assert got == [seen]


def test_6_1_has_no_stack_arguments(make_lab):
    lab = make_lab("6.1")
    lab.load_testmod()
    before = state(lab)
    refused(ENOTSUPP, lab.attach, lab.prog("fentry", NOTHING, name="p"), "bpf_testmod_fentry_test7")
    lab.unload(next(iter(lab.programs.loaded.values())))
    assert state(lab) == before


def test_callee_saved_registers_stack_and_arguments_survive(any_lab):
    lab = any_lab
    saved = ("rbx", "rbp", "r12", "r13", "r14", "r15")
    check = "\n".join(f"mov {reg}, {0x1111 * (i + 1)}" for i, reg in enumerate(saved))
    compare = "\n".join(f"cmp {reg}, {0x1111 * (i + 1)}\njne .Lbad" for i, reg in enumerate(saved))
    push, pop = "\n".join(f"push {r}" for r in saved), "\n".join(f"pop {r}" for r in reversed(saved))
    lab.kernel.add_functions(
        FunctionText(
            "checks",
            f"{push}\n{check}\nmov edi, 1\nmov esi, 2\nmov edx, 3\nmov ecx, 4\nmov r8d, 5\nmov r9d, 6\nsub rsp, 8\n"
            f"call bpf_fentry_test6\nadd rsp, 8\n{compare}\n.Lout:\n{pop}\nret\n.Lbad:\nmov eax, -1\njmp .Lout",
            traceable=False,
        )
    )
    trash = "\n".join(f"mov {r}, 0x7777" for r in ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"))
    for kind in ("fentry", "fexit", "fmod_ret"):
        lab.attach(lab.prog(kind, f"{trash}\nxor eax, eax\nret"), "bpf_fentry_test6")
    assert lab.call("checks").value == 21


def test_the_recursion_guard_counts_a_miss(lab):
    ran = []

    def program(ctx):
        ran.append(ctx.args[0])
        # The traced function is called again from within the program.
        ctx.vcpu.call(lab.kernel.kallsyms.address("bpf_fentry_test1"), ctx.args[0] + 1)

    prog = lab.prog("fentry", program)
    lab.attach(prog, "bpf_fentry_test1")
    lab.call("bpf_fentry_test1", 1)
    assert ran == [1]
    assert lab.programs.misses(prog) == 1
    lab.call("bpf_fentry_test1", 5)
    assert ran == [1, 5]


def test_statistics_count_runs_only_while_they_are_on(lab):
    prog = lab.prog("fentry", NOTHING)
    lab.attach(prog, "bpf_fentry_test1")
    lab.kernel.advance_clock(100)
    lab.call("bpf_fentry_test1", 1)
    assert lab.programs.runs(prog) == 0
    lab.stats(enabled=True)
    lab.call("bpf_fentry_test1", 1)
    assert lab.programs.runs(prog) == 1
    lab.stats(enabled=False)
    lab.call("bpf_fentry_test1", 1)
    assert lab.programs.runs(prog) == 1


def test_sleepable_programs_run_under_trace_rcu(lab):
    nesting = []

    def program(ctx):
        from emu.kernel.structs import task_struct

        nesting.append(task_struct.view(lab.kernel.machine, lab.kernel.current(ctx.vcpu)).trc_reader_nesting)

    lab.attach(lab.prog("fentry", program, sleepable=True), "bpf_fentry_test1")
    lab.call("bpf_fentry_test1", 1)
    assert nesting == [1]


def test_a_bpf_program_as_target(any_lab):
    ran = []
    nops = "nop5" if any_lab.release.name == "6.1" else "endbr64\nnop5"
    target = any_lab.prog("fentry", f"{nops}\nmov eax, 9\nret", name="target")
    links = [any_lab.attach(any_lab.prog("fexit", lambda ctx: ran.append(ctx.ret)), target)]
    links.append(any_lab.attach(any_lab.prog("fentry", lambda ctx: ran.append("entry")), target))
    assert any_lab.call(target.bpf_func, 0).value == 9
    assert ran == ["entry", 9]
    for link in links:
        link.detach()
    assert any_lab.call(target.bpf_func, 0).value == 9
    assert len(ran) == 2


# Refusals -----------------------------------------------------------------------------------------------------------


def test_unknown_and_forbidden_targets(lab):
    prog = lab.prog("fentry", NOTHING)
    before = state(lab)
    refused(ENOENT, lab.attach, prog, "no_such_function")
    refused(EINVAL, lab.attach, prog, "migrate_disable")
    refused(EINVAL, lab.attach, prog, "__bpf_prog_enter_recur")
    refused(EBUSY, lab.attach, prog, "tramplab_notrace")
    with pytest.raises(PrototypeError):
        lab.attach(prog, "bpf_fentry_test1", prototype="int bpf_fentry_test1(int")
    with pytest.raises(PrototypeError, match="not"):
        lab.attach(prog, "bpf_fentry_test1", prototype="int bpf_fentry_test1(long a, int b)")
    for cookie in (-1, 1 << 64):
        with pytest.raises(TrampolineError, match="unsigned 64-bit"):
            lab.attach(prog, "bpf_fentry_test1", cookie=cookie)
    with pytest.raises(TrampolineError, match="attach type"):
        lab.prog("fentyr", NOTHING)
    assert state(lab) == before
    with pytest.raises(TrampolineError, match=r"TRACE_ITER.*there are fentry, fexit"):
        lab.prog(AttachType.TRACE_ITER, NOTHING)
    assert lab.prog(AttachType.TRACE_FEXIT, NOTHING).attach_type is AttachType.TRACE_FEXIT


def test_a_function_without_a_prototype_needs_one(make_lab):
    own = AssemblyFunctions((FunctionText("mine", "mov eax, 3\nret"),))
    lab = make_lab("6.12", functions=(own,))
    prog = lab.prog("fentry", NOTHING)
    with pytest.raises(PrototypeError, match="give one"):
        lab.attach(prog, "mine")
    with lab.attach(prog, "mine", prototype="int mine(void)"):
        assert lab.call("mine").value == 3


def test_attaching_twice_is_busy(lab):
    prog = lab.prog("fentry", NOTHING)
    link = lab.attach(prog, "bpf_fentry_test1")
    before = state(lab)
    refused(EBUSY, lab.attach, prog, "bpf_fentry_test1")
    assert state(lab) == before
    link.detach()
    # f3a95075549e: a program can be attached again.
    lab.attach(prog, "bpf_fentry_test1").detach()
    with pytest.raises(TrampolineError, match="detached already"):
        link.detach()


@pytest.mark.parametrize(("flavour", "limit"), [("6.1", 38), ("6.12", 38), ("7.2", 36)])
def test_the_limit_counts_every_kind(make_lab, flavour, limit):
    # a2aa95b71c9b: the limit left fmod_ret out of the sum.
    lab = make_lab(flavour)
    kinds = ("fentry", "fexit", "fmod_ret")
    for number in range(limit):
        lab.attach(lab.prog(kinds[number % 3], NOTHING), "bpf_modify_return_test")
    before = state(lab)
    last = lab.prog("fmod_ret", NOTHING, name="last")
    refused(E2BIG, lab.attach, last, "bpf_modify_return_test")
    lab.unload(last)
    assert state(lab) == before


def test_unexpected_bytes_at_the_site(lab):
    site = lab.kernel.function("bpf_fentry_test1").site
    lab.kernel.machine.load(site, b"\x90" * 5)
    prog = lab.prog("fentry", NOTHING)
    before = state(lab)
    refused(EINVAL, lab.attach, prog, "bpf_fentry_test1")
    assert state(lab) == before


def test_an_image_beyond_2_gib(lab):
    prog = lab.prog("fentry", NOTHING)
    lab.kernel.execmem.reserved = [0x0000100000000000]
    before = state(lab)
    refused(ERANGE, lab.attach, prog, "bpf_fentry_test1")
    assert state(lab) == before


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
def test_failing_at_every_step_leaves_everything_as_it_was(lab, kind):
    first, second = lab.prog("fentry", NOTHING), lab.prog("fexit", NOTHING)
    before = state(lab)
    lab.attach(first, "bpf_fentry_test1").detach()
    for attached in (False, True):
        link = lab.attach(first, "bpf_fentry_test1") if attached else None
        reference = state(lab)
        nth = 1
        made = None
        while made is None:
            with lab.kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
                try:
                    made = lab.attach(second, "bpf_fentry_test1")
                except KernelError:
                    assert state(lab) == reference
                    nth += 1
        made.detach()
        assert nth > 1
        if link:
            link.detach()
    assert state(lab) == before


def test_module_functions_and_references(lab):
    # 861de02e5f3f: a module must not be unloaded under a trampoline.
    # 31bf1dbccfb0: a module's function was taken for its namesake in the kernel.
    twin = FunctionText("bpf_fentry_test1", "lea eax, [rdi + 100]\nret", "int bpf_fentry_test1(int a)")
    lab.kernel.load_module("twins", AssemblyFunctions((twin,), module="twins"))
    ran = []
    link = lab.attach(lab.prog("fentry", lambda ctx: ran.append(ctx.args)), "twins:bpf_fentry_test1")
    assert lab.call("bpf_fentry_test1", 1).value == 2
    assert ran == []
    assert lab.call("twins:bpf_fentry_test1", 1).value == 101
    assert ran == [(1,)]
    refused(11, lab.kernel.modules.unload, "twins")
    link.detach()
    lab.kernel.modules.unload("twins")
    refused(ENOENT, lab.attach, lab.prog("fentry", NOTHING), "twins:bpf_fentry_test1")
    refused(ENOENT, lab.kernel.modules.unload, "twins")
