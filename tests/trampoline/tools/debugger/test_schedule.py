"""A schedule in the debugger is the one that ``tramp replay`` runs."""

import pytest

from emu.schedule.action import BadSchedule
from emu.schedule.schedulers.random_walk import RandomWalk
from trampoline.tools.debugger import DebugStopReason
from trampoline.tools.debugger.schedule import ScheduleDebugger, debugger_for_schedule
from trampoline.tools.explore.session import ScheduleSession

NULL_LOOKUP = "detach-during-call/tracing-multi-v2/6.12/voluntary/-/b4c36b2"


def random_schedules(scenario, design, flavour, config, count):
    with ScheduleSession(scenario, design, flavour, config) as session:
        scheduler = RandomWalk(7)
        for _ in range(count):
            scheduler.begin()
            outcome = session.run(scheduler)
            codes = [
                (taken.action.token, taken.where.kind, taken.where.what, taken.where.address, taken.steps)
                for taken in outcome.taken
            ]
            yield outcome.text, codes, outcome.violation


@pytest.mark.parametrize(
    ("scenario", "design", "flavour", "config"),
    [
        ("attach-during-call", "per-function", "6.12", "voluntary"),
        ("detach-during-call", "specialised", "7.2", "lazy"),
        ("detach-while-sleeping", "per-function", "6.12", "voluntary"),
        ("batch-patching", "tracing-multi-v2", "6.12", "voluntary"),
        ("livepatch-meets-fexit", "per-function", "6.12", "lazy"),
    ],
)
def test_every_step_begins_where_the_replay_does(scenario, design, flavour, config):
    for text, taken, violation in random_schedules(scenario, design, flavour, config, 3):
        debugger = debugger_for_schedule(f"{scenario}/{design}/{flavour}/{config}/-/{text}")
        assert violation is None
        assert debugger.failure == ""
        assert debugger.position < debugger.end
        number = 0
        for token, kind, what, address, steps in taken:
            step = debugger.schedule[number]
            assert step.token == token
            debugger.goto(step.position)
            thread = debugger._actors[token[0]].thread
            if kind == "code":
                assert debugger.registers(thread)["rip"] == address, (number, token)
                assert not debugger.is_trapped(thread)
            elif kind == "int3 entry":
                assert debugger.is_trapped(thread)
            elif token[0] != "z" and thread.kind == "operation" and kind not in ("begins", "done"):
                assert thread.state == f"at {kind}: {what}"
            number += steps
        assert number == len(debugger.schedule)
        debugger.goto(debugger.end)
        assert all(thread.is_done for thread in debugger.threads)
        assert {thread.value for thread in debugger.threads if thread.kind == "task"} == {42}
        debugger.close()


def test_the_null_look_up_step_by_step():
    debugger = debugger_for_schedule(NULL_LOOKUP)
    assert "page fault reading 0x52" in debugger.failure
    made = 0
    while (stop := debugger.next_in_schedule()).reason is DebugStopReason.STEP:
        made += 1
        assert debugger.schedule_step == made
    assert made == 40  # the last of the 42 faults where it begins
    assert stop.reason is DebugStopReason.FAULT
    assert "0x52" in stop.message
    fault = debugger.position
    assert debugger.step().reason is DebugStopReason.FAULT
    assert "kfunc_md.bpf_origin_call" in debugger.code_line(debugger.rip).text
    assert debugger.registers()["r13"] == 0
    assert [call.name.partition("+")[0] for call in debugger.backtrace()] == [
        "bpf_global_caller_2_run", "bpf_global_caller_2", "explored",
    ]  # fmt: skip
    # Instructions within the last step: the look-up reads an empty bucket.
    debugger.back(2)
    assert debugger.schedule_step == 41
    while debugger.step().reason is DebugStopReason.STEP:
        pass
    assert debugger.position == fault
    debugger.back_in_schedule()
    assert debugger.position == debugger.schedule[40].position
    # Another way: the CPU goes on before the bucket is emptied, and all is well.
    debugger.goto(debugger.schedule[4].position)
    debugger.select(debugger._actors["b"].thread)
    assert debugger.run().reason is DebugStopReason.DONE
    assert debugger.next_in_schedule().reason is DebugStopReason.DONE
    debugger.close()


@pytest.mark.parametrize("text", ["b99", "q3", "zR"])
def test_what_does_not_fit_the_scenario(text):
    with pytest.raises(BadSchedule):
        debugger_for_schedule(f"detach-during-call/tracing-multi-v2/6.12/voluntary/-/{text}")


def test_a_schedule_debugger_takes_its_session_with_it():
    scenario, design, flavour, config, _, text = NULL_LOOKUP.split("/")
    session = ScheduleSession(scenario, design, flavour, config)
    debugger = ScheduleDebugger(session, text)
    debugger.close()
    assert session.stage.lab.kernel.machine.vcpus == []
