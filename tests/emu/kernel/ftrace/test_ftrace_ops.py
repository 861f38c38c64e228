"""Several users on one site: what it calls, who runs, what they see, what is left."""

import pytest

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.ftrace.records import DynFtraceFlag, ftrace_jmp_set
from emu.kernel.process_context import PointKind
from emu.kernel.structs import PERCPU, task_struct
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import errno_of, refused

EINVAL, EBUSY, ENOENT, ENOMEM = 22, 16, 2, 12
F = DynFtraceFlag
SAVE_REGS, IPMODIFY, RECURSION = FtraceOpsFlag.SAVE_REGS, FtraceOpsFlag.IPMODIFY, FtraceOpsFlag.RECURSION
NONE = FtraceOpsFlag(0)
NAME = "bpf_fentry_test1"


@pytest.fixture
def ftrace(kernel):
    return kernel.ftrace


@pytest.fixture
def site(kernel):
    return kernel.function(NAME).site


@pytest.fixture
def record(ftrace, site):
    return ftrace.records[site]


@pytest.fixture
def log():
    return []


@pytest.fixture
def user(kernel, ftrace, log):
    """Makes an ops on bpf_fentry_test1 that writes its name to the log."""

    def make(name, flags=NONE, *, register=True, names=(NAME,), func=None):
        ops = FtraceOps(name, func or (lambda ip, parent, ops, regs: log.append(ops.name)), flags)
        for function in names:
            ftrace.ftrace_set_filter_ip(ops, kernel.function(function).address)
        if register:
            ftrace.register_ftrace_function(ops)
        return ops

    return make


@pytest.fixture
def direct(kernel, site):
    """A direct caller on bpf_fentry_test1, not registered, and two addresses for it."""
    a, b = kernel.add_functions(
        FunctionText("direct_a", "mov edi, 100\nret", traceable=False),
        FunctionText("direct_b", "mov edi, 200\nret", traceable=False),
    )
    ops = FtraceOps("direct")
    kernel.ftrace.ftrace_set_filter_ip(ops, site)
    return ops, a.address, b.address


def state(kernel):
    kernel.rcu.settle()
    text = {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()}
    return (
        text, dict(kernel.execmem.images), sorted(kernel.slab.objects.values()), len(kernel.kallsyms),
        kernel.ftrace.ops, dict(kernel.ftrace.direct_functions),
        {ip: record.flags for ip, record in kernel.ftrace.records.items()},
    )  # fmt: skip


def call(kernel, argument=1, name=NAME):
    return kernel.call(name, argument).value


# What the site calls ------------------------------------------------------------------------------------------------


def test_one_user_has_a_trampoline_of_its_own(kernel, user, record, log):
    before = state(kernel)
    ops = user("a")
    assert record.address == ops.trampoline
    assert record.flags == F.ENABLED | F.TRAMP | F.TRAMP_EN | 1
    assert (call(kernel), log) == (2, ["a"])
    kernel.ftrace.unregister_ftrace_function(ops)
    assert state(kernel) == before
    assert (call(kernel), log) == (2, ["a"])


@pytest.mark.parametrize(("flags", "stub"), [(NONE, "ftrace_caller"), (SAVE_REGS, "ftrace_regs_caller")])
def test_several_users_share_a_stub(kernel, user, record, log, flags, stub):
    before = state(kernel)
    first, second, third = user("a", flags), user("b"), user("c")
    assert record.address == kernel.kallsyms.address(stub)
    assert record.flags == F.ENABLED | (F.REGS | F.REGS_EN if flags else 0) | 3
    # The list begins with the newest.
    assert (call(kernel), log) == (2, ["c", "b", "a"])
    log.clear()
    kernel.ftrace.unregister_ftrace_function(second)
    assert (call(kernel), log) == (2, ["c", "a"])
    kernel.ftrace.unregister_ftrace_function(first)
    assert record.address == third.trampoline
    kernel.ftrace.unregister_ftrace_function(third)
    assert state(kernel) == before


@pytest.mark.parametrize("direct_first", [True, False])
@pytest.mark.parametrize("flags", [NONE, SAVE_REGS, RECURSION])
def test_a_direct_caller_among_users_comes_last(kernel, user, record, direct, log, direct_first, flags):
    before = state(kernel)
    ops, a, _ = direct
    if direct_first:
        kernel.ftrace.register_ftrace_direct(ops, a)
        assert record.address == a
    other = user("other", flags)
    if not direct_first:
        kernel.ftrace.register_ftrace_direct(ops, a)
    assert record.address == kernel.kallsyms.address("ftrace_regs_caller")
    assert record.flags == F.ENABLED | F.REGS | F.REGS_EN | F.DIRECT | 2
    assert (call(kernel), log) == (101, ["other"])
    if direct_first:
        kernel.ftrace.unregister_ftrace_function(other)
        assert record.address == a
        assert record.flags & (F.DIRECT_EN | 3) == F.DIRECT_EN | 1
        assert (call(kernel), log) == (101, ["other"])
        kernel.ftrace.unregister_ftrace_direct(ops, a, free_filters=True)
    else:
        kernel.ftrace.unregister_ftrace_direct(ops, a, free_filters=True)
        assert record.address == other.trampoline
        assert (call(kernel), log) == (2, ["other"] * 2)
        kernel.ftrace.unregister_ftrace_function(other)
    assert state(kernel) == before


def test_a_direct_caller_reached_by_jmp_returns_to_the_functions_caller(kernel, user, direct, log):
    ops, _, _ = direct
    (replaces,) = kernel.add_functions(FunctionText("replaces", "mov eax, 77\nret", traceable=False))
    kernel.ftrace.register_ftrace_direct(ops, ftrace_jmp_set(replaces.address))
    straight = kernel.call(NAME, 1)
    user("other")
    listed = kernel.call(NAME, 1)
    assert (straight.value, listed.value, log) == (77, 77, ["other"])
    # The ret that stands for a jmp takes the entry of the site's call: what comes after is in step again.
    assert (straight.counts.unbalanced_returns, listed.counts.unbalanced_returns) == (0, 1)


def test_one_user_on_many_sites_has_one_trampoline(kernel, user, direct, log):
    names = tuple(f"bpf_fentry_test{number}" for number in range(1, 7))
    ops, a, _ = direct
    kernel.ftrace.register_ftrace_direct(ops, a)
    many = user("many", names=names)
    reached = [kernel.ftrace.records[kernel.function(name).site].address for name in names]
    assert reached == [kernel.kallsyms.address("ftrace_regs_caller"), *[many.trampoline] * 5]
    kernel.call("bpf_fentry_test2", 2, 3)
    # The list function asks each ops for its filter: the direct caller has only the first function.
    assert (call(kernel), kernel.call("bpf_fentry_test5", 1, 1, 1, 1, 1).value, log) == (101, 5, ["many"] * 3)


def test_an_empty_filter_is_every_site(kernel, log):
    before = state(kernel)
    ops = FtraceOps("all", lambda ip, parent, ops, regs: log.append(ip))
    kernel.ftrace.register_ftrace_function(ops)
    other = FtraceOps("other", lambda ip, parent, ops, regs: log.append(0), filter={kernel.function(NAME).site})
    kernel.ftrace.register_ftrace_function(other)
    call(kernel)
    call(kernel, name="bpf_fentry_test7")
    assert log == [0, kernel.function(NAME).site, kernel.function("bpf_fentry_test7").site]
    kernel.ftrace.unregister_ftrace_function(ops)
    kernel.ftrace.unregister_ftrace_function(other)
    assert state(kernel) == before


def test_a_filter_may_change_while_the_ops_is_registered(kernel, user, log):
    before = state(kernel)
    ops, other = user("a"), user("b")
    second = kernel.function("bpf_fentry_test7")
    kernel.ftrace.ftrace_set_filter_ip(ops, second.site)
    call(kernel)
    call(kernel, name=second.name)
    assert log == ["b", "a", "a"]
    kernel.ftrace.ftrace_set_filter_ip(ops, kernel.function(NAME).site, remove=True)
    call(kernel)
    assert log == ["b", "a", "a", "b"]
    kernel.ftrace.ftrace_set_filter_ips(ops, [kernel.function(NAME).address], reset=True)
    assert (kernel.ftrace.records[second.site].count, kernel.ftrace.records[kernel.function(NAME).site].count) == (0, 2)
    kernel.ftrace.unregister_ftrace_function(other)
    kernel.ftrace.unregister_ftrace_function(ops)
    assert state(kernel) == before


# What callbacks see -------------------------------------------------------------------------------------------------


def test_ip_parent_and_registers(kernel, user, site):
    seen = []

    def callback(ip, parent, ops, regs):
        seen.append((ops.name, ip, parent, regs.di, regs.si, regs.ip, regs.bx if regs.cs else None, regs.sp))

    kernel.add_functions(
        FunctionText(
            "calls",
            f"push rbx\nmov rbx, 0x1234\nmov edi, 7\nmov esi, 8\ncall {NAME}\ncalls_behind:\npop rbx\nret",
            traceable=False,
        )
    )
    behind = kernel.functions["calls"].image.symbols["calls_behind"]
    ops = [user("plain", func=callback), None]
    kernel.call("calls")
    ops[1] = user("regs", SAVE_REGS, func=callback)
    kernel.call("calls")
    kernel.ftrace.unregister_ftrace_function(ops[0])
    kernel.call("calls")
    common = (site, behind, 7, 8, site + 5)
    sp = seen[0][-1]
    assert kernel.machine.read_u64(sp) == behind
    assert seen == [
        ("plain", *common, None, sp),
        ("regs", *common, 0x1234, sp),
        ("plain", *common, 0x1234, sp),
        ("regs", *common, 0x1234, sp),
    ]


ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax")
CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("flags", [NONE, SAVE_REGS])
@pytest.mark.parametrize("is_direct", [False, True])
def test_what_the_function_finds_is_what_its_caller_left(kernel, user, flags, shared, is_direct):
    kept = (*ARGUMENTS, *CALLEE_SAVED, *(("r10",) if flags or is_direct else ()))
    values = [(name, 0x1000 + number) for number, name in enumerate(kept)]
    push, pop = "\n".join(f"push {r}" for r in CALLEE_SAVED), "\n".join(f"pop {r}" for r in reversed(CALLEE_SAVED))
    compare = "\n".join(f"cmp {name}, {value:#x}\njne victim_bad" for name, value in values)
    # The flags are the caller's as well where all registers are saved; the way to a direct caller changes them.
    carry = "jae victim_bad\n" if flags and not is_direct else ""
    moves = "\n".join(f"mov {name}, {value:#x}" for name, value in values)
    trash = "\n".join(f"mov {name}, 0x7777" for name in (*ARGUMENTS, "r10", "r11"))
    kernel.add_functions(
        FunctionText("victim", f"{carry}{compare}\nmov eax, 1\nret\nvictim_bad:\nmov eax, 2\nret"),
        FunctionText("checks", f"{push}\n{moves}\nstc\ncall victim\n{pop}\nret", traceable=False),
        FunctionText("trashes", f"{trash}\nxor eax, eax\nret", traceable=False),
        FunctionText("direct_nothing", "ret", traceable=False),
    )
    user("a", flags, names=("victim",), func="trashes")
    if shared:
        user("b", names=("victim",), func="trashes")
    if is_direct:
        ops = FtraceOps("direct", filter={kernel.function("victim").site})
        kernel.ftrace.register_ftrace_direct(ops, kernel.kallsyms.address("direct_nothing"))
    assert kernel.call("checks").value == 1


def test_a_callback_may_redirect_the_function(kernel, user, direct):
    (instead,) = kernel.add_functions(FunctionText("instead", "lea eax, [rdi + 50]\nret", traceable=False))

    def callback(ip, parent, ops, regs):
        regs.ip = instead.address
        regs.di = 5

    ops = user("modifies", SAVE_REGS | IPMODIFY, func=callback)
    assert call(kernel) == 55
    user("other")
    assert call(kernel) == 55
    kernel.ftrace.unregister_ftrace_function(ops)
    assert call(kernel) == 2


# Recursion ----------------------------------------------------------------------------------------------------------


def recursion(kernel):
    return task_struct.view(kernel.machine, kernel.current(kernel.machine.vcpus[0])).trace_recursion


@pytest.mark.parametrize("case", ["listed", "assisted"])
def test_recursion_is_let_through_once(kernel, user, log, case):
    """A second level may be an interrupt's; the third is certainly recursion."""

    def callback(ip, parent, ops, regs):
        log.append(recursion(kernel))
        if len(log) < 9:
            kernel.machine.vcpus[0].call(kernel.function(NAME).address, 1)

    ops = user("recursive", RECURSION if case == "assisted" else NONE, func=callback)
    if case == "listed":
        user("other", func="ftrace_stub")
    call(kernel)
    # TRACE_INTERNAL_BIT's group begins at 5: normal context is 3 further, the transition 4.
    assert log == [1 << 8, 1 << 8 | 1 << 9]
    assert recursion(kernel) == 0
    kernel.ftrace.unregister_ftrace_function(ops)


@pytest.mark.parametrize(("preempt_count", "bit"), [(1 << 8, 7), (1 << 16, 6), (1 << 20, 5)])
def test_every_context_has_a_bit_of_its_own(kernel, user, log, preempt_count, bit):
    user("a", func=lambda ip, parent, ops, regs: log.append(recursion(kernel)))
    user("b", func="ftrace_stub")
    area = PERCPU.view(kernel.machine, kernel.percpu_areas[0])
    before = area.preempt_count
    area.preempt_count |= preempt_count
    call(kernel)
    assert log == [1 << bit]
    assert area.preempt_count == before | preempt_count


# Refusals -----------------------------------------------------------------------------------------------------------


def test_refusals(kernel, user, direct, site):
    ftrace, (_, a, _) = kernel.ftrace, direct
    refused(EINVAL, ftrace.register_ftrace_function, FtraceOps("nothing to call"))
    refused(EBUSY, ftrace.unregister_ftrace_function, FtraceOps("not registered", "ftrace_stub"))
    registered = user("a")
    before = state(kernel)
    refused(EBUSY, ftrace.register_ftrace_function, registered)
    refused(EINVAL, ftrace.register_ftrace_direct, registered, a)
    refused(EINVAL, ftrace.ftrace_set_filter_ips, registered, [site, site + 1])
    refused(ENOENT, ftrace.ftrace_set_filter_ips, registered, [site, site], remove=True)
    # Changing regs->ip is a matter of single functions.
    refused(EINVAL, ftrace.register_ftrace_function, FtraceOps("all", "ftrace_stub", SAVE_REGS | IPMODIFY))
    assert state(kernel) == before


def test_only_one_user_may_change_the_ip(kernel, user, direct, record):
    first = user("first", SAVE_REGS | IPMODIFY)
    assert record.flags & F.IPMODIFY
    second = user("second", SAVE_REGS | IPMODIFY, register=False)
    before = state(kernel)
    refused(EBUSY, kernel.ftrace.register_ftrace_function, second)
    # A direct caller that can't be asked doesn't share, and leaves nothing behind (56b3c85e153b).
    refused(EBUSY, kernel.ftrace.register_ftrace_direct, direct[0], direct[1])
    assert state(kernel) == before
    kernel.ftrace.unregister_ftrace_function(first)
    kernel.ftrace.register_ftrace_direct(direct[0], direct[1])
    before = state(kernel)
    refused(EBUSY, kernel.ftrace.register_ftrace_function, second)
    assert state(kernel) == before


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
def test_failing_at_every_step_leaves_everything_as_it_was(kernel, user, direct, kind):
    ftrace, (ops, a, b) = kernel.ftrace, direct
    first = user("first", register=False)
    second = user("second", SAVE_REGS, register=False)
    other = kernel.function("bpf_fentry_test7").site
    steps = [
        lambda: ftrace.register_ftrace_function(first),
        lambda: ftrace.register_ftrace_function(second),
        lambda: ftrace.register_ftrace_direct(ops, a),
        lambda: ftrace.ftrace_set_filter_ips(first, [other], reset=True),
        lambda: ftrace.modify_ftrace_direct(ops, b),
        lambda: ftrace.unregister_ftrace_function(second),
        lambda: ftrace.modify_ftrace_direct(ops, a),
        lambda: ftrace.reset_ftrace_direct_ips(ops, [kernel.function("bpf_fentry_test2").site]),
        lambda: ftrace.unregister_ftrace_direct(ops, a),
        lambda: ftrace.unregister_ftrace_function(first),
    ]
    start = state(kernel)
    for step in steps:
        before, nth = state(kernel), 1
        while True:
            with kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
                failed = errno_of(step)
            if not failed:
                break
            assert (failed, state(kernel)) == (ENOMEM, before)
            nth += 1
    assert state(kernel) == start


# Lifetimes ----------------------------------------------------------------------------------------------------------


def test_unregistering_waits_for_those_in_the_callback(boot, log):
    # 0e792b89e680: a dynamic ops was freed under a callback that ran.
    kernel = boot(vcpus=2)
    ops = FtraceOps("slow", lambda ip, parent, ops, regs: log.append("callback"))
    kernel.ftrace.ftrace_set_filter_ip(ops, kernel.function(NAME).site)
    kernel.ftrace.register_ftrace_function(ops)
    trampoline, struct = ops.trampoline, ops.address
    vcpu = kernel.machine.vcpus[1]
    task = kernel.task("in the trampoline", NAME, 1)
    vcpu.run(task, preempt_after=20)
    operation = kernel.process.start(lambda: kernel.ftrace.unregister_ftrace_function(ops))
    while operation.at is None or operation.at.kind is not PointKind.GRACE_PERIOD:
        operation.step()
    assert trampoline in kernel.execmem.images
    assert struct in kernel.slab.objects
    vcpu.run(task)
    operation.finish()
    assert log == ["callback"]
    assert trampoline not in kernel.execmem.images
    assert struct not in kernel.slab.objects


def test_a_modules_sites_leave_every_filter(kernel, log):
    kernel.load_module("mod", AssemblyFunctions((FunctionText("in_mod", "mov eax, 3\nret"),), module="mod"))
    before = len(kernel.ftrace.records)
    ops = FtraceOps("a", lambda ip, parent, ops, regs: log.append(ip))
    sites = [kernel.function(NAME).site, kernel.function("mod:in_mod").site]
    kernel.ftrace.ftrace_set_filter_ips(ops, sites)
    kernel.ftrace.register_ftrace_function(ops)
    kernel.modules.unload("mod")
    assert (ops.filter, len(kernel.ftrace.records)) == ({sites[0]}, before - 1)
    call(kernel)
    kernel.ftrace.unregister_ftrace_function(ops)
    assert log == sites[:1]
