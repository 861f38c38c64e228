import pytest

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.ftrace.records import ftrace_jmp_set
from emu.kernel.process_context import PointKind
from emu.kernel.text.functions import FunctionText
from refusals import refused

EINVAL, EBUSY, ENOENT, ENOMEM = 22, 16, 2, 12


@pytest.fixture
def direct(kernel):
    """Two direct callers: each sets the argument and returns into the traced function."""
    made = kernel.add_functions(
        FunctionText("direct_a", "mov edi, 100\nret", traceable=False),
        FunctionText("direct_b", "mov edi, 200\nret", traceable=False),
    )
    return [function.address for function in made]


def ops_on(kernel, *names):
    ops = FtraceOps("ops")
    for name in names:
        kernel.ftrace.ftrace_set_filter_ip(ops, kernel.function(name).address)
    return ops


def call(kernel, name="bpf_fentry_test1"):
    return kernel.call(name, 1).value


def test_register_modify_unregister(kernel, direct):
    ftrace, (a, b) = kernel.ftrace, direct
    site = kernel.function("bpf_fentry_test1").site
    before = kernel.machine.read(site, 5)
    ops = ops_on(kernel, "bpf_fentry_test1")
    ftrace.register_ftrace_direct(ops, a)
    assert call(kernel) == 101
    ftrace.modify_ftrace_direct(ops, b)
    assert call(kernel) == 201
    # 8a141dd7f706: after a modify, unregistering with the new address works, with the old one it doesn't.
    refused(EINVAL, ftrace.unregister_ftrace_direct, ops, a)
    ftrace.unregister_ftrace_direct(ops, b, free_filters=True)
    assert call(kernel) == 2
    assert kernel.machine.read(site, 5) == before
    assert (ops.filter, ftrace.direct_functions) == (set(), {})


def test_a_jmp_site_returns_to_the_caller(kernel, direct):
    kernel.add_functions(FunctionText("replaces", "mov eax, 77\nret", traceable=False))
    ops = ops_on(kernel, "bpf_fentry_test1")
    kernel.ftrace.register_ftrace_direct(ops, ftrace_jmp_set(kernel.kallsyms.address("replaces")))
    assert call(kernel) == 77
    assert kernel.machine.read(kernel.function("bpf_fentry_test1").site, 1) == b"\xe9"


def test_many_sites_are_patched_in_one_batch(kernel, direct):
    names = [f"bpf_fentry_test{number}" for number in range(1, 7)]
    ops = ops_on(kernel, *names)
    kernel.ftrace.register_ftrace_direct(ops, direct[0])
    assert (kernel.text_poke.ipis, kernel.text_poke.writes) == (3, 3 * len(names))


def test_refusals(kernel, direct):
    ftrace, (a, b) = kernel.ftrace, direct
    fresh = FtraceOps("fresh")
    refused(EINVAL, ftrace.register_ftrace_direct, fresh, a)
    refused(EINVAL, ftrace.modify_ftrace_direct, fresh, a)
    refused(EINVAL, ftrace.unregister_ftrace_direct, fresh, a)
    refused(EINVAL, ftrace.ftrace_set_filter_ip, fresh, kernel.kallsyms.address("tramplab_notrace"))
    refused(ENOENT, ftrace.ftrace_set_filter_ip, fresh, kernel.function("bpf_fentry_test1").address, remove=True)
    ops = ops_on(kernel, "bpf_fentry_test1")
    ftrace.register_ftrace_direct(ops, a)
    refused(EINVAL, ftrace.register_ftrace_direct, ops, a)
    other = ops_on(kernel, "bpf_fentry_test1", "bpf_fentry_test2")
    refused(EBUSY, ftrace.register_ftrace_direct, other, b)
    assert call(kernel, "bpf_fentry_test2") == 1
    assert not other.enabled


def test_unexpected_bytes_anywhere_patch_nothing(kernel, direct):
    first, second = kernel.function("bpf_fentry_test1").site, kernel.function("bpf_fentry_test2").site
    kernel.machine.load(second, b"\x90" * 5)
    ops = ops_on(kernel, "bpf_fentry_test1", "bpf_fentry_test2")
    refused(EINVAL, kernel.ftrace.register_ftrace_direct, ops, direct[0])
    assert kernel.machine.read(first, 1) == b"\x0f"
    assert (kernel.text_poke.writes, kernel.ftrace.direct_functions, ops.enabled) == (0, {}, False)


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
def test_failing_at_will_leaves_everything_as_it_was(kernel, direct, kind):
    ops = ops_on(kernel, "bpf_fentry_test1", "bpf_fentry_test2")
    with kernel.process.fail_at(kind, 1, lambda what: KernelError(ENOMEM, what)):
        refused(ENOMEM, kernel.ftrace.register_ftrace_direct, ops, direct[0])
    assert (kernel.ftrace.direct_functions, ops.direct_call, kernel.text_poke.writes) == ({}, 0, 0)
    kernel.ftrace.register_ftrace_direct(ops, direct[0])
    assert call(kernel) == 101


def test_a_failing_modify_keeps_the_old_address(kernel, direct):
    # 2a2d8c51defb: the error path kept the new address, so that the next look-up by the old one failed.
    a, b = direct
    ops = ops_on(kernel, "bpf_fentry_test1")
    kernel.ftrace.register_ftrace_direct(ops, a)
    with kernel.process.fail_at(PointKind.PATCH, 1, lambda what: KernelError(EBUSY, what)):
        refused(EBUSY, kernel.ftrace.modify_ftrace_direct, ops, b)
    assert call(kernel) == 101
    kernel.ftrace.modify_ftrace_direct(ops, b)
    assert call(kernel) == 201
