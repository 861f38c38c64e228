"""Runs stop exactly where looking at each step finds something."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.debug import AtAddress, AtEvent, AtPhase, DataAccess, DebugError, DebugStopReason, When
from emu.kernel.errors import KernelError


def steps(bench):
    """Position, rip, rsp and the words of the data before each step of a whole run."""
    debugger, found = bench.debugger, []
    while True:
        registers = debugger.registers()
        found.append((debugger.position, registers["rip"], registers["rsp"], debugger.read(bench.data, 256)))
        if debugger.step().reason is not DebugStopReason.STEP:
            return found


def hits(bench, start):
    """Where runs stop from a position to the end, and from the end back to it."""
    debugger = bench.debugger
    debugger.goto(start)
    forth = []
    while debugger.run().reason is DebugStopReason.BREAKPOINT:
        forth.append(debugger.position)
    back = []
    while True:
        stop = debugger.run_back()
        if stop.reason is not DebugStopReason.BREAKPOINT:
            break
        back.append(debugger.position)
    return forth, back[::-1]


@given(offset=st.integers(0, 40), spacing=st.integers(3, 60), function=st.sampled_from(["outer", "leaf"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_address_stops_as_often_as_it_is_reached(make_bench, offset, spacing, function):
    bench = make_bench(1)
    debugger = bench.debugger
    debugger._record._spacing = spacing
    debugger.call("outer", bench.data, 3)
    all_steps = steps(bench)
    address = debugger.address_of(f"{function}+{offset}")
    wanted = [position for position, rip, _, _ in all_steps if rip == address and position > 1]
    debugger.add(AtAddress(address))
    forth, back = hits(bench, 1)
    assert forth == wanted
    assert back == wanted
    debugger.close()


@pytest.mark.parametrize("spacing", [5, 4000])
def test_a_condition_is_asked_where_it_belongs(bench, spacing):
    debugger = bench.debugger
    debugger._record._spacing = spacing
    debugger.call("outer", bench.data, 5)
    second = debugger.add(AtAddress("leaf", lambda at: at.registers()["rbx"] == 3))
    assert debugger.run().breakpoint is second
    assert debugger.read(bench.data, 1) == b"\x02"
    debugger.remove(second)
    small = debugger.add(When(lambda at: at.read(bench.data, 1) == b"\x04", "four"))
    assert debugger.run().breakpoint is small
    here = debugger.position
    assert debugger.read(bench.data, 1) == b"\x04"
    debugger.back()
    assert debugger.read(bench.data, 1) == b"\x03"
    debugger.goto(here)
    for _ in range(3):
        debugger.step()
    debugger.run_back()
    assert debugger.position == here + 2  # it holds there too


@pytest.mark.parametrize(("how", "word"), [("r", 0), ("w", 0), ("rw", 0), ("w", 128), ("r", 128)])
def test_accesses_stop_behind_the_instruction_that_makes_them(bench, how, word):
    debugger = bench.debugger
    debugger._record._spacing = 11
    debugger.call("outer", bench.data, 3)
    all_steps = steps(bench)
    # The third instruction of leaf reads the word, the fifth writes it.
    begins = debugger.address_of("leaf+9")
    reads = [position + 1 for position, rip, _, _ in all_steps if rip == begins]
    writes = [position + 2 for position in reads]
    wanted = sorted((reads if "r" in how else []) + (writes if "w" in how else [])) if not word else []
    breakpoint = debugger.add(DataAccess(bench.data + word + 3, 2, how))
    forth, back = hits(bench, 1)
    assert forth == wanted
    assert back == wanted
    debugger.goto(1)
    assert debugger.run().breakpoint is (breakpoint if wanted else None)


def test_changes_of_data_are_where_writes_stop(bench):
    debugger = bench.debugger
    debugger.call("copies", bench.data)
    debugger.write(bench.data, bytes(range(1, 33)))
    begun = debugger.position
    all_steps = steps(bench)
    changed = [now[0] for before, now in itertools.pairwise(all_steps) if before[3] != now[3]]
    debugger.add(DataAccess(bench.data + 64, 32, "r"))
    assert hits(bench, begun)[0][:1] == [debugger_first(all_steps, "copies", debugger)]
    for breakpoint in debugger.breakpoints:
        debugger.remove(breakpoint)
    debugger.add(DataAccess(bench.data, 64, "w"))
    assert set(changed) <= set(hits(bench, begun)[0])


def debugger_first(all_steps, function, debugger):
    """The position behind the first iteration of the copy."""
    copies = next(at.address for at in debugger.code(debugger.address_of(function)) if "rep" in at.text)
    return next(position for position, rip, _, _ in all_steps if rip == copies) + 1


def test_events_stop_an_operation_and_are_found_again(bench):
    debugger = bench.debugger
    debugger.operation("patch", bench.patch())
    debugger.add(AtEvent("TextPatched"))
    forth = []
    while (stop := debugger.run()).reason is DebugStopReason.EVENT:
        forth.append((debugger.position, stop.event.phase.name))
    assert [phase for _, phase in forth] == ["INT3", "TAIL", "FIRST_BYTE"]
    assert stop.reason is DebugStopReason.DONE
    back = []
    while (stop := debugger.run_back()).reason is DebugStopReason.EVENT:
        back.append((debugger.position, stop.event.phase.name))
    assert back[::-1] == forth
    assert debugger.position == 1


def test_what_can_not_be_a_breakpoint(bench):
    debugger = bench.debugger
    with pytest.raises(KernelError):
        debugger.add(AtAddress("no_such_function"))
    debugger.phases = ("save", "lookup")
    with pytest.raises(DebugError, match="no phase 'lunch'; there are save, lookup"):
        debugger.add(AtPhase("lunch"))
    with pytest.raises(DebugError, match="'x'"):
        debugger.add(DataAccess(bench.data, 8, "x"))
    with pytest.raises(DebugError, match="0 bytes"):
        debugger.add(DataAccess(bench.data, 0))
    with pytest.raises(DebugError, match="no such breakpoint"):
        debugger.remove(AtAddress("leaf"))
    assert debugger.breakpoints == ()
    assert debugger.add(AtAddress("leaf")) == debugger.add(AtAddress("leaf"))
    assert len(debugger.breakpoints) == 1


def test_a_breakpoint_where_a_run_begins_does_not_stop_it(bench):
    debugger = bench.debugger
    debugger.call("outer", bench.data, 2)
    debugger.add(AtAddress("outer"))
    assert debugger.run().reason is DebugStopReason.DONE


def test_marks_do_not_stop_what_a_host_call_calls(make_bench):
    bench = make_bench(1)
    kernel, debugger = bench.kernel, bench.debugger
    leaf = kernel.kallsyms.address("leaf")
    nested = kernel.machine.host_call("nested", lambda vcpu: vcpu.call(leaf, bench.data).value)
    debugger.add(AtAddress("leaf"))
    debugger.add(DataAccess(bench.data, 8))
    debugger.call(nested)
    assert debugger.run().reason is DebugStopReason.DONE
    assert debugger.thread.value == 1


def test_hooks_in_python_stop_where_those_in_machine_code_do(make_bench, monkeypatch):
    found = []
    for hooks in ("native", "python"):
        if hooks == "python":
            monkeypatch.setattr("emu.host.hook_code.native_hooks", lambda: None)
        bench = make_bench(1)
        debugger = bench.debugger
        debugger._record._spacing = 13
        debugger.call("outer", bench.data, 3)
        debugger.add(AtAddress("leaf"))
        debugger.add(DataAccess(bench.data + 4, 2, "w"))
        debugger.run()
        debugger.run()
        while debugger.run().reason is DebugStopReason.BREAKPOINT:
            pass
        found.append(hits(bench, 1))
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
