import pytest

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd, FtraceOpsFlag
from emu.kernel.text.functions import FunctionText
from refusals import refused

EAGAIN, EBUSY, EINVAL, ENOENT = 11, 16, 22, 2
NAME = "bpf_fentry_test1"
SELF = FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_SELF
PEER, GONE = FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_PEER, FtraceOpsCmd.DISABLE_SHARE_IPMODIFY_PEER


@pytest.fixture
def patch(kernel):
    kernel.add_functions(
        FunctionText("instead", "lea eax, [rdi + 1000]\nret"),
        FunctionText("direct_a", "mov edi, 100\nret", traceable=False),
    )
    return LivePatch(kernel, NAME, "instead")


@pytest.fixture
def direct(kernel):
    """A direct caller that notes what it is asked, and refuses with the errors in ``answers`` first."""
    ops = FtraceOps("direct", filter={kernel.function(NAME).site})
    asked, answers = [], []

    def share(asked_ops, ip, cmd):
        assert (asked_ops, ip) == (ops, kernel.function(NAME).site)
        asked.append(cmd)
        if answers:
            raise KernelError(answers.pop(0), "not now")

    ops.ops_func = share
    return ops, asked, answers


def state(kernel):
    kernel.rcu.settle()
    site = kernel.function(NAME).site
    return (
        kernel.machine.read(site, 5), sorted(kernel.slab.objects.values()), dict(kernel.execmem.images),
        kernel.ftrace.ops, dict(kernel.ftrace.direct_functions), kernel.ftrace.records[site].flags,
    )  # fmt: skip


def test_a_function_and_back(kernel, patch):
    before = state(kernel)
    patch.enable()
    call = kernel.call(NAME, 5)
    assert (call.value, call.counts.unbalanced_returns) == (1005, 1)
    refused(EBUSY, patch.enable)
    patch.disable()
    refused(EINVAL, patch.disable)
    assert kernel.call(NAME, 5).value == 6
    assert state(kernel) == before


def test_a_replacement_may_be_traced_and_replaced_itself(kernel, patch):
    seen = []
    ops = FtraceOps("on it", lambda ip, parent, ops, regs: seen.append(regs.di))
    kernel.ftrace.ftrace_set_filter_ip(ops, kernel.function("instead").address)
    kernel.ftrace.register_ftrace_function(ops)
    patch.enable()
    assert (kernel.call(NAME, 5).value, seen) == (1005, [5])


def test_refusals(kernel, patch):
    refused(ENOENT, LivePatch, kernel, "nothing", "instead")
    refused(ENOENT, LivePatch, kernel, NAME, "nothing")
    before = state(kernel)
    refused(EINVAL, LivePatch(kernel, "tramplab_notrace", "instead").enable)
    assert state(kernel) == before
    patch.enable()
    before = state(kernel)
    refused(EBUSY, LivePatch(kernel, NAME, "instead").enable)
    assert state(kernel) == before


@pytest.mark.parametrize("patched_first", [True, False])
def test_a_direct_caller_is_asked_and_called_last(kernel, patch, direct, patched_first):
    ops, asked, _ = direct
    before = state(kernel)
    address = kernel.kallsyms.address("direct_a")
    if patched_first:
        patch.enable()
        kernel.ftrace.register_ftrace_direct(ops, address)
    else:
        kernel.ftrace.register_ftrace_direct(ops, address)
        patch.enable()
    assert asked == [SELF if patched_first else PEER]
    # The direct caller returns into the replacement, with the argument that it set.
    assert kernel.call(NAME, 5).value == 1100
    kernel.ftrace.modify_ftrace_direct(ops, address)
    assert asked[1:] == [SELF]
    patch.disable()
    assert asked[2:] == [GONE]
    assert kernel.call(NAME, 5).value == 101
    kernel.ftrace.unregister_ftrace_direct(ops, address, free_filters=True)
    assert state(kernel) == before


def test_nobody_but_the_caller_tries_again(kernel, patch, direct):
    ops, asked, answers = direct
    kernel.ftrace.register_ftrace_direct(ops, kernel.kallsyms.address("direct_a"))
    before = state(kernel)
    answers.append(EAGAIN)
    refused(EAGAIN, patch.enable)
    assert (asked, state(kernel)) == ([PEER], before)
    patch.enable()
    assert kernel.call(NAME, 5).value == 1100


def test_a_direct_caller_that_is_to_be_asked_again_leaves_nothing_behind(kernel, patch, direct):
    # 56b3c85e153b: the first attempt's entries made the second one fail with -EBUSY.
    ops, asked, answers = direct
    patch.enable()
    before = state(kernel)
    answers.append(EAGAIN)
    address = kernel.kallsyms.address("direct_a")
    refused(EAGAIN, kernel.ftrace.register_ftrace_direct, ops, address)
    assert (state(kernel), ops.is_direct, ops.direct_call) == (before, False, 0)
    kernel.ftrace.register_ftrace_direct(ops, address)
    assert asked == [SELF, SELF]
    # 3e9a18e1c3e9: a new address is a new negotiation.
    before = state(kernel)
    answers.append(EAGAIN)
    refused(EAGAIN, kernel.ftrace.modify_ftrace_direct, ops, address + 16)
    assert (state(kernel), ops.direct_call) == (before, address)


def test_what_direct_callers_agreed_to_is_taken_back_where_patching_fails(kernel, patch, direct):
    ops, asked, _ = direct
    kernel.ftrace.register_ftrace_direct(ops, kernel.kallsyms.address("direct_a"))
    kernel.machine.load(kernel.function(NAME).site, b"\x90" * 5)
    refused(EINVAL, patch.enable)
    assert asked == [PEER, GONE]


def test_one_of_two_direct_callers_does_not_share(kernel, direct):
    ops, asked, _ = direct
    address = kernel.add_functions(FunctionText("direct_nothing", "ret", traceable=False))[0].address
    kernel.ftrace.register_ftrace_direct(ops, address)
    stubborn = FtraceOps("stubborn", filter={kernel.function("tramplab_sleeps").site})
    kernel.ftrace.register_ftrace_direct(stubborn, address)
    both = FtraceOps("both", "ftrace_stub", FtraceOpsFlag.SAVE_REGS | FtraceOpsFlag.IPMODIFY)
    both.filter = ops.filter | stubborn.filter
    before = state(kernel)
    refused(EBUSY, kernel.ftrace.register_ftrace_function, both)
    assert (asked, state(kernel)) == ([PEER, GONE], before)
