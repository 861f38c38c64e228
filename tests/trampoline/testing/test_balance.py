"""What sequences look at beside what programs see: sections, counts, the stack, the values that calls are made with."""

from types import SimpleNamespace

import pytest
from kernel_releases import RELEASES

from emu.kernel.counter_balance import unbalanced, written_since
from emu.kernel.routines.routine import Fragment
from emu.kernel.structs import PERCPU, percpu_ref, rq, srcu_ctr, task_struct
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.bpf.uapi import AttachType
from trampoline.testing import booted_kernels
from trampoline.testing.kernel_pool import Variant
from trampoline.testing.leak_check import Holdings
from trampoline.testing.reference_model import ModelProgram
from trampoline.testing.traced_functions import Prototype
from trampoline.tools.mutants.patch import applied, replace

pytestmark = pytest.mark.slow

VARIANT = Variant("7.2", "none")
NESTING = task_struct.offset("trc_reader_nesting")


@pytest.fixture(scope="module")
def kernels():
    with booted_kernels("per-function") as kernels:
        yield kernels


@pytest.fixture
def watched(kernels):
    return kernels.take(RELEASES["7.2"], VARIANT)


def attach(watched, program, name, *, sleepable=False):
    prog = watched.load(program, multi=False, sleepable=sleepable)
    return prog, watched.attach(program, prog, (name,), (7,), multi=False)


@pytest.mark.parametrize(
    ("path", "new", "field"),
    [
        (
            "trampoline.callees.prog_enter_exit.rcu_read_lock_trace",
            lambda config, label: Fragment(""),
            "trc_reader_nesting",
        ),
        (
            "trampoline.callees.prog_enter_exit._no_migrate",
            lambda config, form: config.dont_migrate,
            "migration_disabled",
        ),
    ],
    ids=["section", "pin"],
)
def test_a_program_that_runs_outside_is_seen(path, new, field):
    with applied(replace(path, new)), booted_kernels("per-function") as kernels:
        watched = kernels.take(RELEASES["7.2"], VARIANT)
        attach(watched, ModelProgram(1, AttachType.TRACE_FENTRY), "tramplab_inner", sleepable=True)
        with pytest.raises(AssertionError, match=f"runs with {field} 0x0, not 1"):
            watched.call("tramplab_inner", (1,))


def test_an_inner_section_that_ends_the_outer_one_is_seen(watched):
    attach(watched, ModelProgram(1, AttachType.TRACE_FENTRY, calls="tramplab_inner"), "tramplab_outer", sleepable=True)
    _, link = attach(watched, ModelProgram(2, AttachType.TRACE_FENTRY), "tramplab_inner", sleepable=True)
    assert len(watched.call("tramplab_outer", (1,))[0]) == 6
    assert not list(unbalanced(watched.lab.kernel))
    link.detach()
    check, seen = watched._check_section, []

    def ends(program, vcpu):
        seen.append(program.number)
        if len(seen) == 2:
            watched.lab.kernel.machine.write_u32(vcpu.task.address + NESTING, 0)
        check(program, vcpu)

    watched._check_section = ends
    with pytest.raises(AssertionError, match="runs with trc_reader_nesting 0x0, not 1"):
        watched.call("tramplab_outer", (1,))


def test_counts_without_a_task_are_seen(watched):
    kernel = watched.lab.kernel
    attach(watched, ModelProgram(1, AttachType.TRACE_FEXIT), "tramplab_inner")
    watched.call("tramplab_inner", (1,))
    assert not list(unbalanced(kernel))
    pinned = PERCPU.offset("runqueues") + rq.offset("nr_pinned")
    kernel.machine.write_u32(kernel.percpu_areas[1] + pinned, (1 << 32) - 1)
    (what,) = unbalanced(kernel)
    assert what == "nr_pinned of the CPUs is [0, -1] where 0 tasks are pinned"
    kernel.machine.write_u32(kernel.percpu_areas[1] + pinned, 0)
    locks = kernel.percpu_areas[0] + PERCPU.offset("rcu_tasks_trace_srcu_ctrs") + srcu_ctr.offset("srcu_locks")
    kernel.machine.write_u64(locks, kernel.machine.read_u64(locks) + 2)
    (what,) = unbalanced(kernel)
    assert what.endswith("were entered and 0 left where 0 tasks are in one")
    kernel.machine.write_u64(locks, 0)
    (ref,) = kernel.percpu_refs.initialised
    counter = percpu_ref.view(kernel.machine, ref).percpu_count_ptr
    kernel.machine.write_u64(kernel.percpu_areas[0] + counter, 3)
    (what,) = unbalanced(kernel)
    assert what.endswith("counts 0x4 where no task is anywhere")


def test_a_count_in_memory_that_was_freed_is_seen(watched):
    kernel = watched.lab.kernel
    prog, link = attach(watched, ModelProgram(1, AttachType.TRACE_FEXIT), "tramplab_inner")
    link.detach()
    watched.lab.unload(prog)
    assert watched.counters == {prog.active}
    assert not list(written_since(kernel, watched.counters))
    at = kernel.percpu_areas[1] + prog.active
    kernel.machine.write_u32(at, kernel.machine.read_u32(at) - 1)
    (what,) = written_since(kernel, watched.counters)
    assert f"{prog.active:#x} was changed after it was freed" in what


def test_a_stack_that_is_not_aligned_is_seen(watched):
    watched.add([Prototype("seven", "int seven(long a, long b, long c, long d, long e, long f, long g)")])
    number = watched._names.index("seven")
    assert watched.call("seven", watched.functions["seven"].distinct())[0]
    with pytest.raises(AssertionError, match="seven is entered with rsp misaligned, at 0x1010"):
        watched._original(SimpleNamespace(regs=SimpleNamespace(rax=number, rsp=0x1008)))


def test_rubbish_lies_on_the_stack(watched):
    machine = watched.lab.kernel.machine
    vcpu = machine.vcpus[0]
    watched.call("tramplab_inner", (1,))
    assert machine.read(vcpu.task.first_rsp - 0x800, 8) == bytes(range(0x80, 0x88))


def test_a_site_that_stays_is_left_over(watched):
    before = Holdings.of(watched.lab)
    body = FunctionText("of_some_module", "ret", "int of_some_module(void)")
    watched.lab.kernel.load_module("some_module", AssemblyFunctions((body,), module="some_module"))
    site = watched.lab.kernel.function("some_module:of_some_module").site
    assert f"sites: [] before, [{site}] after" in before.difference(Holdings.of(watched.lab))


def test_argument_words_differ_in_each_byte(watched):
    watched.add([Prototype("six", "int six(long a, long b, long c, long d, long e, long f)")])
    six = watched.functions["six"]
    for words in (six.distinct(), [six.distinct(salt)[0] for salt in range(5)]):
        columns = list(zip(*(word.to_bytes(8, "little") for word in words), strict=True))
        assert all(len(set(column)) == len(words) for column in columns)
