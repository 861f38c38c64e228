"""Scenarios on designs: what breaks, and what does not."""

import re

import pytest

from emu.kernel.errors import KernelError
from emu.kernel.structs import PERCPU, percpu_ref, rq, srcu_ctr
from emu.schedule.action import BadSchedule
from emu.schedule.run import Choice
from emu.schedule.schedulers.pct import Pct
from emu.schedule.schedulers.replay import Replay
from emu.schedule.schedulers.spec import scheduler_for
from emu.schedule.task_actor import GuestActor
from emu.schedule.violation import Violation
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.structs import bpf_prog_stats
from trampoline.designs import DESIGNS
from trampoline.tools.cli import main
from trampoline.tools.explore.campaign import campaign, explore
from trampoline.tools.explore.invariants import EnterAndExitBalance
from trampoline.tools.explore.scenarios import SCENARIOS, applies
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.session import ScheduleSession

pytestmark = pytest.mark.slow

AS_POSTED = {"tracing-multi-v2"}
"""Designs with defects that are to be found."""
PAIRS = [
    (scenario, design)
    for scenario in SCENARIOS
    for design in DESIGNS
    if design not in AS_POSTED and applies(scenario, design)
]


@pytest.mark.parametrize(("scenario", "design"), PAIRS)
def test_unmutated_designs_break_nothing(scenario, design):
    """The control, in small: half of the schedules by priorities, half by interleavings."""
    with ScheduleSession(scenario, design) as session:
        for spec in ("pct:3", "urw"):
            tally = explore(session, scheduler_for(spec, 2), schedules=4)
            assert tally.found is None, tally.found.command
            assert tally.cut == 0


def test_the_null_look_up_of_the_series_is_found_made_small_and_replayed(capsys):
    arguments = ["explore", "--scenario", "detach-during-call", "--design", "tracing-multi-v2", "--schedules", "200"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "page fault reading 0x52" in printed
    text = re.search(r"tramp replay (\S+)", printed)[1]
    assert int(re.search(r"to \d+ steps and (\d+) switches", printed)[1]) <= 6
    assert main(["replay", text]) == 1
    replayed = capsys.readouterr().out
    assert "kfunc_md.bpf_origin_call" in replayed
    assert replayed.count("<<<") == 1
    # The series repaired has no such schedule.
    with ScheduleSession("detach-during-call", "tracing-multi-v2-fixed") as session:
        assert explore(session, Pct(1), schedules=60).found is None


def test_a_walk_that_a_resize_leaves_behind_is_found():
    """TracingMultiDefects.resize_copies: an unlink takes the program off the copy alone."""
    with ScheduleSession("resize-during-lookup", "tracing-multi-v2") as session:
        scheduler = Pct(1)
        for _ in range(120):
            scheduler.begin()
            outcome = session.run(scheduler)
            scheduler.end(outcome)
            if outcome.violation is not None and outcome.violation.kind == "use after free":
                break
        assert outcome.violation.kind == "use after free"
        assert "kfunc_md_tramp_prog" in str(outcome.violation)
        assert str(session.replay(outcome.text).violation) == str(outcome.violation)


def test_a_callback_does_not_shrink_the_table_while_records_come():
    with ScheduleSession("resize-during-lookup", "specialised+hash", "7.2", "lazy") as session:
        assert explore(session, Pct(2), schedules=130).found is None


def test_livepatch_on_the_series_is_found_at_once():
    tally = campaign("livepatch-meets-fexit", "tracing-multi-v2", schedules=5)
    assert tally.found is not None
    assert tally.found.shrunk.violation.kind == "Oops"
    # Two operations are enough.
    assert {token[0] for token in tally.found.shrunk.tokens} == {"c", "d"}
    assert tally.found.shrunk.switches == 1


@pytest.mark.parametrize("design", ["per-function", "specialised", "tracing-multi-v2"])
def test_every_schedule_runs_the_same_twice_in_traces_and_counts(design):
    with ScheduleSession("modify-during-call", design, counting="auto") as session:
        scheduler = Pct(5)
        for _ in range(6):
            scheduler.begin()
            first = session.run(scheduler)
            scheduler.end(first)
            runs = []
            for _ in range(2):
                outcome = session.replay(first.text)
                runs.append((session.trace(outcome), session.instructions(), str(outcome.violation)))
            assert runs[0] == runs[1]
            assert runs[0][2] == str(first.violation)
            assert min(runs[0][1]) > 10


def test_the_same_seed_finds_the_same():
    first, again = (campaign("detach-during-call", "tracing-multi-v2", seed=3, schedules=200) for _ in range(2))
    assert first.found.command == again.found.command
    assert first.found.number == again.found.number
    assert first.count == again.count


def test_lazy_kernels_preempt_and_migrate():
    with ScheduleSession("attach-during-call", "per-function", "7.2", "lazy") as session:
        scheduler = scheduler_for("urw", 1)
        texts = []
        for _ in range(20):
            scheduler.begin()
            outcome = session.run(scheduler)
            scheduler.end(outcome)
            texts.append(outcome.text)
            assert outcome.violation is None
        assert any("P" in text for text in texts)


BALANCES = {
    "nr_pinned": PERCPU.offset("runqueues") + rq.offset("nr_pinned"),
    "RCU-tasks-trace": PERCPU.offset("rcu_tasks_trace_srcu_ctrs") + srcu_ctr.offset("srcu_locks"),
}


@pytest.mark.parametrize("what", [*BALANCES, "percpu_ref", "counts as running", "took 0x1 ns"])
def test_what_is_left_unbalanced_at_rest_is_seen(what):
    with ScheduleSession("modify-during-call", "per-function", "7.2", "none") as session:
        kernel, prog = session.stage.lab.kernel, session.stage.programs[0]
        balance = EnterAndExitBalance(session.stage)
        balance.at_rest(session.world)
        reference = next(iter(kernel.percpu_refs.initialised))
        counter = percpu_ref.view(kernel.machine, reference).percpu_count_ptr
        nsecs = prog.stats + bpf_prog_stats.offset("nsecs")
        offset = {**BALANCES, "percpu_ref": counter, "counts as running": prog.active, "took 0x1 ns": nsecs}[what]
        address = kernel.percpu.address(offset, 1)
        kernel.machine.write_u32(address, kernel.machine.read_u32(address) + 1)
        with pytest.raises(Violation, match=what):
            balance.at_rest(session.world)


def test_a_program_that_ends_on_another_cpu_is_seen_behind_the_call():
    with ScheduleSession("detach-while-program-sleeps", "per-function", "7.2", "none") as session:
        kernel, prog = session.stage.lab.kernel, session.stage.programs[0]
        session.run(_Last())
        call = next(actor for actor in session.world.actors if isinstance(actor, GuestActor))
        balance = EnterAndExitBalance(session.stage)
        balance.begin(session.world)
        # The program is gone, and its count may belong to others.
        balance.after_step(session.world, call)
        session.world.reset()
        balance.begin(session.world)
        kernel.machine.write_u32(kernel.percpu.address(prog.active, 1), (1 << 32) - 1)
        with pytest.raises(Violation, match="ended more often than it began"):
            balance.after_step(session.world, call)


class _Last(Replay):
    """Operations and grace periods go first."""

    def __init__(self):
        super().__init__((), strict=False)

    def choose(self, actions, last, step):
        return Choice(actions[-1])


@pytest.mark.parametrize("design", ["per-function", "specialised", "tracing-multi-v2-fixed"])
def test_a_cookie_that_a_program_never_had_is_seen(design):
    with ScheduleSession("cookies-change", design) as session:
        assert explore(session, Pct(1), schedules=3).found is None
        session.plan.cookies = {**session.plan.cookies, (1, "explored_1"): 7}
        violation = session.run(_Last()).violation
        assert violation is None, "the program was gone before anybody called"
        scheduler = Pct(1)
        scheduler.begin()
        session.plan.operations = lambda: {"change": []}
        violation = session.run(scheduler).violation
        assert violation.kind == "wrong cookie"
        assert "explored_1" in str(violation)
        assert "program 1" in str(violation)


def test_addresses():
    address = ScheduleAddress("detach-during-call", "tracing-multi-v2", "6.12", "voluntary", "a", "b4c36b2")
    assert ScheduleAddress.parse(str(address)) == address
    for text in ("", "a/b", "a/b/c/d/-/", "a/b/c/d/e/f/g"):
        with pytest.raises(BadSchedule):
            ScheduleAddress.parse(text)


def test_what_there_is_not_is_refused(capsys):
    with pytest.raises(TrampolineError, match="no scenario"):
        ScheduleSession("nonsense", "per-function")
    with pytest.raises((TrampolineError, KernelError)):
        ScheduleSession("attach-during-call", "nonsense")
    assert main(["explore", "--scenario", "nonsense"]) == 2
    assert main(["explore", "--scheduler", "best", "--schedules", "1", "--scenario", "two-attaches"]) == 2
    assert main(["replay", "nonsense"]) == 2
    assert main(["replay", "attach-during-call/per-function/6.12/voluntary/-/q9"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_a_design_can_not_do_is_said(capsys):
    arguments = ["explore", "--design", "tracing-multi-v1", "--flavour", "6.1", "--schedules", "1"]
    assert main([*arguments, "--scenario", "attach-during-call"]) == 0
    assert "cannot run: functions of this kernel have no padding" in capsys.readouterr().out
