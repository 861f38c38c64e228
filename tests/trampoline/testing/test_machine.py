"""The state machine: every design keeps what its documents say, and one that does not is found out."""

import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test
from kernel_releases import RELEASES

from emu.kernel.ftrace.ops import FtraceOpsFlag
from emu.kernel.ftrace.registration import FunctionTracer
from emu.kernel.text.text_poke import VECTOR_SIZE, TextPoke
from paths import ROOT
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.prog import BpfPrograms
from trampoline.bpf.uapi import AttachType
from trampoline.designs import DESIGNS, DesignInfo
from trampoline.testing import Order, Traits, booted_kernels, lab_machine, run_sequences, traced_functions
from trampoline.testing.kernel_pool import Variant
from trampoline.testing.reference_model import ModelProgram, Original, ProgramRun, Reference, Tracer
from trampoline.testing.strategies import prototypes
from trampoline.update.bpf_trampoline import BpfTrampoline

pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=5,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("design", [name for name, design in DESIGNS.items() if design.sound])
def test_designs_keep_what_is_documented(design):
    found = run_sequences(design, seed_number=1, examples=5, steps=20)
    assert found.failure is None, found.failure.program
    assert found.examples >= 5
    assert found.steps > 40


def test_the_defects_of_the_posted_series_are_found():
    found = run_sequences("tracing-multi-v2", examples=60, steps=20)
    assert found.failure is not None


def test_a_design_that_is_not_as_documented_is_found_out():
    wrong = lab_machine("batched", Traits(order=Order.OLDEST_FIRST))
    with pytest.raises(AssertionError, match=r"in a call of|not one of"):
        run_state_machine_as_test(wrong, settings=settings(FEW, max_examples=60))


def test_a_seed_number_always_runs_the_same_sequences():
    wrong = Traits(order=Order.OLDEST_FIRST)
    with booted_kernels("batched", wrong) as kernels:
        fresh, again, kept, kept_again = (
            run_sequences("batched", wrong, seed_number=5, examples=60, kernels=given)
            for given in (None, None, kernels, kernels)
        )
    assert fresh.failure is not None
    assert (fresh.examples, fresh.steps) == (kept.examples, kept.steps) == (kept_again.examples, kept_again.steps)
    assert fresh.failure.text == again.failure.text == kept.failure.text == kept_again.failure.text
    assert fresh.failure.program == kept_again.failure.program
    assert "state.boot(" in fresh.failure.program
    other = run_sequences("batched", wrong, seed_number=6, examples=60)
    assert other.failure.program != fresh.failure.program


def test_shrinking_gives_a_shorter_program():
    wrong = Traits(order=Order.OLDEST_FIRST)
    found, shrunk = (
        run_sequences("batched", wrong, releases=[RELEASES["6.1"]], seed_number=5, examples=60, shrink=shrink)
        for shrink in (False, True)
    )
    assert shrunk.failure.program.count("state.") < found.failure.program.count("state.")
    assert shrunk.steps > found.steps


def test_an_own_design_needs_traits():
    factory = DESIGNS["batched"].make
    with pytest.raises(TrampolineError, match="no traits are known of '_batched'"):
        lab_machine(factory)
    documented = DesignInfo("mine", factory, traits=Traits(image_per_function=True))
    assert lab_machine(documented).SUBJECT.traits is documented.traits
    with pytest.raises(TrampolineError, match="no design 'unknown'"):
        lab_machine("unknown")


def test_what_the_documentation_shows_runs():
    text = (ROOT / "docs" / "sequences.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(code.replace("max_examples=5", "max_examples=2"), "sequences.md", "exec"), {})


def test_any_number_of_slots_is_drawn():
    drawn = set()

    @settings(FEW, max_examples=300)
    @given(prototypes("f"))
    def draw(prototype):
        drawn.add(prototype.model.nr_regs)

    draw()
    assert {0, 1, 6, 7, 8, 12} <= drawn


# What is looked at sees it ------------------------------------------------------------------------------------------


@pytest.fixture
def watched():
    with booted_kernels("per-function") as kernels:
        yield kernels.take(RELEASES["6.12"], Variant("6.12"))


def attach(watched, program, name, **options):
    prog = watched.load(program, multi=False, sleepable=program.sleeps > 0)
    return watched.attach(program, prog, (name,), (7,), multi=False, **options)


def test_a_register_that_is_not_the_callers_any_more_is_seen(monkeypatch):
    monkeypatch.setattr(traced_functions, "_MAY_CHANGE", (*traced_functions._MAY_CHANGE, "r12d"))
    with booted_kernels("per-function") as kernels:
        watched = kernels.take(RELEASES["6.12"], Variant("6.12"))
        with pytest.raises(AssertionError, match="tramplab_inner changed r12"):
            watched.call("tramplab_inner", (1,))


def test_a_kernel_that_is_taken_again_is_as_booted(watched):
    with booted_kernels("per-function") as kernels:
        variant = Variant("6.12")
        first = kernels.take(RELEASES["6.12"], variant)
        before = first.lab.kernel.machine.read(first.lab.kernel.layout.text, 1 << 16)
        attach(first, ModelProgram(1, AttachType.TRACE_FEXIT), "tramplab_inner")
        assert first.call("tramplab_inner", (1,))[0]
        assert first.lab.kernel.machine.read(first.lab.kernel.layout.text, 1 << 16) != before
        again = kernels.take(RELEASES["6.12"], variant)
        assert again is first
        assert again.lab.kernel.machine.read(again.lab.kernel.layout.text, 1 << 16) == before
        assert not again.lab.programs.loaded
        kernels.drop(again)
        assert kernels.take(RELEASES["6.12"], variant) is not first


def test_a_program_sees_its_own_context_behind_a_nested_call(watched):
    attach(watched, ModelProgram(1, AttachType.TRACE_FENTRY, calls="tramplab_inner"), "tramplab_outer")
    attach(watched, ModelProgram(2, AttachType.TRACE_FEXIT), "tramplab_inner")
    happened, value = watched.call("tramplab_outer", (5,))
    assert [one.program for one in happened if isinstance(one, ProgramRun)] == [1, 2, 2]
    assert value == 6
    assert watched.counted() == {1: (0, 0), 2: (0, 0)}


def test_a_program_sleeps_as_often_as_it_says(watched):
    program = ModelProgram(1, AttachType.TRACE_FENTRY, sleeps=2)
    attach(watched, program, "tramplab_inner")
    watched.sleeps_in = lambda program, function: program.sleeps > 0
    happened, task = watched.start("tramplab_inner", (5,), cpu=0)
    assert [type(one) for one in happened] == [ProgramRun]
    assert watched.wake(task, 0) == []
    assert watched.wake(task, 0) == [Original("tramplab_inner")]
    assert watched.end(task) == 5


@pytest.mark.parametrize("clock", [0, 1, 2])
def test_runs_are_counted_from_a_clock_of_two_on(watched, clock):
    attach(watched, program := ModelProgram(1, AttachType.TRACE_FENTRY), "tramplab_inner")
    reference = Reference(Traits(), RELEASES["6.12"], list(watched.functions.values()))
    reference.attach(program, ("tramplab_inner",), (7,), multi=False)
    reference.time(on=True)
    reference.clock = clock
    watched.lab.kernel.advance_clock(clock)
    watched.lab.stats(enabled=True)
    assert watched.call("tramplab_inner", (1,)) == reference.call("tramplab_inner", (1,))
    assert watched.counted()[1] == (0, int(clock > 1))
    assert reference.runs[1] == int(clock > 1)


@pytest.mark.parametrize(("on", "off"), [(True, False), (False, True)], ids=["comes-on", "goes-off"])
def test_a_run_in_which_statistics_change_is_not_counted(watched, on, off):
    attach(watched, program := ModelProgram(1, AttachType.TRACE_FENTRY, sleeps=1), "tramplab_inner")
    reference = Reference(Traits(), RELEASES["6.12"], list(watched.functions.values()))
    reference.attach(program, ("tramplab_inner",), (7,), multi=False)
    watched.sleeps_in = reference.sleeps_in
    watched.lab.kernel.advance_clock(1000)
    watched.lab.stats(enabled=off)
    reference.time(on=off)
    _, task = watched.start("tramplab_inner", (1,), cpu=0)
    _, asleep = reference.start("tramplab_inner", (1,), cpu=0)
    watched.lab.stats(enabled=on)
    reference.time(on=on)
    assert watched.wake(task, 0) == reference.wake(asleep, 0)[0]
    assert watched.counted()[1] == (0, 0)
    assert reference.runs[1] == 0


@pytest.mark.parametrize("names", [("tramplab_outer", "tramplab_inner"), ()], ids=["two", "all"])
def test_a_tracer_is_told_of_each_of_its_functions(watched, names):
    watched.lab.kernel.ftrace.register_ftrace_function(watched.tracer(3, names, FtraceOpsFlag(0)))
    happened, _ = watched.call("tramplab_outer", (1,))
    both = [(Tracer(name, 3), Original(name)) for name in ("tramplab_outer", "tramplab_inner")]
    assert happened == [one for pair in both for one in pair]


def module_sites_stay(ftrace, module):
    """Records of a module that went."""
    for ops in ftrace.ops:
        ops.sites -= {ip for ip, record in ftrace.records.items() if record.module == module}


def site_of_a_full_vector_is_lost(poke, address, text, emulate=None, original=TextPoke.batch_add):
    """The one that does not fit any more."""
    if len(poke._queue) == VECTOR_SIZE:
        poke.batch_finish()
    else:
        original(poke, address, text, emulate)


def limit_without_fmod_ret(trampoline, link, original=BpfTrampoline._add):
    """B2: a2aa95b71c9b."""
    links = trampoline.links
    trampoline.links = [one for one in links if one[1].prog.attach_type is not AttachType.MODIFY_RETURN]
    try:
        original(trampoline, link)
    finally:
        added = trampoline.links[-1:] if link.linked else []
        trampoline.links = [*links, *added]
    return len(trampoline.links) - 1


def freed_at_once(programs, prog):
    """Without a grace period."""
    prog.refs -= 1
    if prog.refs == 0:
        programs._free(prog)


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (BpfTrampoline, "_add", limit_without_fmod_ret),
        (BpfPrograms, "put", freed_at_once),
        (FunctionTracer, "remove_sites", module_sites_stay),
        (TextPoke, "batch_add", site_of_a_full_vector_is_lost),
    ],
    ids=["limit", "freed", "module", "vector"],
)
def test_historic_bugs_are_found(monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    found = run_sequences("batched", releases=[RELEASES["6.1"]], seed_number=3, examples=60)
    assert found.failure is not None
