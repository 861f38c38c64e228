"""The defects of the posted series that inspection found (1, 2, 5, 6, 7), tried on specialised: see
test_tracing_multi_defects.py and, for 1, test_specialised.py.
"""

from errno import E2BIG, EINVAL, ENOMEM

import pytest

from emu.kernel.process_context import PointKind
from refusals import refused
from trampoline.bpf.errors import KernelError
from trampoline.designs import DESIGNS

pytestmark = pytest.mark.slow

NOTHING = "xor eax, eax\nret"
NAMES = [f"bpf_fentry_test{number}" for number in range(1, 7)]


@pytest.fixture(params=DESIGNS["specialised"].metadata)
def lab(request, make_lab):
    return make_lab("6.12", design="specialised", metadata=request.param)


def state(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    return (
        kernel.machine.read(kernel.layout.text, 1 << 16), sorted(kernel.execmem.images.values()),
        sorted(kernel.slab.objects.values()), sorted(kernel.percpu.objects.values()),
        dict(kernel.ftrace.direct_functions), kernel.rcu.pending, len(lab.trampolines),
    )  # fmt: skip


def test_2_a_sleeper_outlives_a_resize_and_the_program_that_it_would_run(lab):
    """There a resize copies the metadata, and a sleeper walks what was unlinked from the copy alone."""
    ran = []
    more = [function.name for function in lab.population.select(["tramplab_args*", "bpf_fentry_test*"])]
    gone = lab.prog("fexit_multi", lambda ctx: ran.append("gone"), name="gone")
    link = lab.attach_multi(gone, ["tramplab_sleeps", NAMES[0]], cookies=[1, 2])
    task = lab.kernel.task("sleeper", "tramplab_sleeps", 41)
    lab.kernel.machine.vcpus[0].run(task)
    # Enough records for the hash to grow, and fewer again.
    other = lab.attach_multi(lab.prog("fentry_multi", NOTHING), more, cookies=range(len(more)))
    link.detach()
    lab.unload(gone)
    other.detach()
    lab.kernel.rcu.settle()
    task.wake()
    assert lab.kernel.machine.vcpus[0].run(task).value == 42
    assert ran == []
    lab.kernel.rcu.settle()
    assert not [name for name in lab.kernel.execmem.images.values() if name.startswith("tramplab_caller")]


def test_5_and_6_a_link_that_is_refused_leaves_everything_as_it_was(lab):
    """There unlinking stops at the first function without the program, and walks functions that were never linked."""
    prog = lab.prog("fentry_multi", NOTHING)
    first = lab.attach_multi(prog, NAMES[:3], cookies=[1, 2, 3])
    before = state(lab)
    refused(16, lab.attach_multi, prog, NAMES, cookies=range(6))
    refused(EINVAL, lab.attach_multi, lab.prog("fexit_multi", NOTHING, name="x"), [*NAMES, NAMES[0]], cookies=range(7))
    assert state(lab)[0] == before[0]
    assert state(lab)[4:] == before[4:]
    first.detach()
    assert lab.kernel.ftrace.direct_functions == {}


def test_7_there_is_a_limit_on_programs_of_a_function(lab):
    """There the count of programs has 8 bits and no limit."""
    links = [
        lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES[:2], cookies=[number, number + 1])
        for number in range(lab.release.trampoline.max_links)
    ]
    before = state(lab)
    refused(E2BIG, lab.attach_multi, lab.prog("fexit_multi", NOTHING, name="one more"), NAMES[:2], cookies=[1, 2])
    assert state(lab)[4:] == before[4:]
    assert lab.call(NAMES[0], 1).value == 2
    for link in links:
        link.detach()
    assert lab.kernel.ftrace.direct_functions == {}


def test_a_table_that_can_not_shrink_is_no_reason_to_refuse_a_detach(make_lab):
    lab = make_lab("6.12", design="specialised", metadata="hash")
    more = [function.name for function in lab.population.select(["tramplab_args*", "bpf_fentry_test*"])]
    prog = lab.prog("fentry_multi", NOTHING)
    struck = []

    def no_memory(what):
        struck.append(what)
        return KernelError(ENOMEM, what)

    for nth in range(1, 12):
        link = lab.attach_multi(prog, more, cookies=range(len(more)))
        struck.clear()
        refused_with = None
        with lab.kernel.process.fail_at(PointKind.ALLOC, nth, no_memory):
            try:
                link.detach()
            except KernelError as error:
                refused_with = error
        assert link.attached == bool(refused_with) == bool(lab.kernel.ftrace.direct_functions)
        if link.attached:
            link.detach()
        if any(what.startswith("kfunc_md_array") for what in struck):
            break
    else:
        pytest.fail("the table was never shrunk")
