"""Programs in the debugger: their eBPF instructions, source lines, stack, and what they leave in maps."""


import pytest

from paths import ROOT
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.tools.debugger import BpfDebugger, DebugStopReason
from trampoline.tools.debugger.debugger import AtProgram

OBJECT = ROOT / "examples" / "watch_calls.o"


@pytest.fixture
def lab(make_lab):
    return make_lab("7.2")


@pytest.fixture
def watcher(lab):
    with lab.open(BpfObject.open(OBJECT), data={"at_least": 16}) as watcher:
        watcher.attach_all()
        yield watcher


@pytest.fixture
def debugger(lab, watcher):
    with BpfDebugger(lab) as debugger:
        debugger.call("bpf_fentry_test5", 11, 12, 13, 14, 15)
        yield debugger


def test_each_instruction_has_its_ebpf_and_source(debugger):
    debugger.run_to("program")
    first = debugger.code_line(debugger.rip)
    while not first.ebpf:
        assert debugger.step().reason is DebugStopReason.STEP
        first = debugger.code_line(debugger.rip)
    assert first.ebpf == "0: r8 = r1"
    sources = []
    while debugger.step().reason is DebugStopReason.STEP:
        line = debugger.code_line(debugger.rip)
        if line.source and line.source.split(": ", 1)[1] not in sources:
            sources.append(line.source.split(": ", 1)[1])
    wanted = ("seen++;", "count(ret);", "if (times)", "if (ret < at_least)", "call->number = seen;")
    assert [source for source in sources if source in wanted] == list(wanted)


def test_the_programs_own_frames(debugger):
    debugger.run_to("program")
    while not debugger.symbol(debugger.rip).endswith("_count+0x9"):
        debugger.step()
    assert debugger.program_at() == "watch"
    inner, outer = debugger.frame(), debugger.frame(level=1)
    assert inner.function.partition("+")[0].endswith("count")
    assert outer["r10 - 8"].value == 12
    assert outer["r10 - 24"].value == 14
    assert [slot.name for slot in outer.slots[-4:]] == ["saved rbx", "saved r13", "saved r14", "saved r15"]


def test_maps_go_back_with_the_rest(debugger, lab, watcher):
    def left():
        return dict(watcher.maps["by_result"]), int(watcher.data["seen"]), [line.text for line in lab.trace]

    assert debugger.run().reason is DebugStopReason.DONE
    after = left()
    assert after == ({65: 1}, 1, ["call 1: a=11 ret=65"])
    end = debugger.position
    debugger.goto(1)
    assert left() == ({}, 0, [])
    debugger.goto(end)
    assert left() == after


def test_a_breakpoint_at_a_program(debugger):
    debugger.add(AtProgram("watch"))
    assert debugger.run().reason is DebugStopReason.BREAKPOINT
    assert debugger.program_at() == "watch"
    debugger.remove(AtProgram("watch"))
    debugger.add(AtProgram("another"))
    assert debugger.run().reason is DebugStopReason.DONE


def test_a_program_in_python_is_one_instruction(make_lab):
    lab, seen = make_lab("6.12"), []
    lab.attach(lab.prog("fentry", lambda ctx: seen.append(ctx.args)), "bpf_fentry_test2")
    with BpfDebugger(lab) as debugger:
        debugger.call("bpf_fentry_test2", 2, 3)
        assert debugger.run_to("program").reason is DebugStopReason.STEP
        assert debugger.backtrace()[1].name.startswith("bpf_trampoline_")
        assert seen == []
        debugger.step()
        assert seen == [(2, 3)]
        debugger.back()
        assert seen == []
