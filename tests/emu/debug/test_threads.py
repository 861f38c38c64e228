"""Tasks and operations side by side, text that a CPU has not adopted, and faults."""

import pytest

from emu.debug import DebugError, Debugger, DebugStopReason
from emu.kernel.rcu import RcuFlavour


@pytest.mark.parametrize(
    ("function", "argument", "text", "steps"),
    [
        ("reads_badly", 0x1000, "page fault reading 0x1003", 3),
        ("divides", 0, "divide", 4),
        ("undefined", 0, "invalid opcode", 3),
        ("goes_wild", 0x5000, "page fault fetching from 0x5000", 4),
    ],
)
def test_a_fault_leaves_the_state_before_it(bench, function, argument, text, steps):
    debugger = bench.debugger
    debugger.call(function, argument)
    stop = debugger.run()
    assert stop.reason is DebugStopReason.FAULT
    assert text in stop.message
    assert debugger.registers()["rax"] == 5
    assert debugger.position == 1 + steps
    before = bench.state()
    for again in (debugger.step, debugger.run):
        assert again().reason is DebugStopReason.FAULT
        assert bench.state() == before
    debugger.back()
    debugger.back()
    assert debugger.position == steps - 1
    while debugger.step().reason is DebugStopReason.STEP:
        pass
    assert bench.state() == before
    debugger.set_register("rip", debugger.address_of("leaf"))
    debugger.set_register("rdi", bench.data)
    assert debugger.run().reason is DebugStopReason.DONE


def test_a_sleeper_is_woken_and_moved(bench):
    debugger = bench.debugger
    napper = debugger.call("naps", bench.data)
    while napper.state == "running":
        debugger.step()
    assert napper.state == "sleeping"
    asleep = debugger.position
    stop = debugger.step()
    assert (stop.reason, stop.message) == (DebugStopReason.BLOCKED, "asleep")
    other = debugger.call("spins", 3)
    with pytest.raises(DebugError, match="not asleep"):
        debugger.wake(other)
    debugger.wake(napper)
    debugger.select(napper)
    assert "cpu 0 runs spins" in debugger.step().message
    debugger.place(napper, 1)
    assert debugger.step().reason is DebugStopReason.STEP
    assert napper.state == "running"
    assert debugger.vcpus()[1].thread is napper
    with pytest.raises(DebugError, match="preempt it first"):
        debugger.place(napper, 0)
    debugger.preempt(napper)
    assert debugger.vcpus()[1].thread is None
    assert debugger.run().reason is DebugStopReason.DONE
    assert napper.is_done
    debugger.goto(asleep)
    assert napper.state == "sleeping"
    assert napper.cpu == 0


def test_a_run_wakes_who_nobody_else_can(bench):
    debugger = bench.debugger
    debugger.write(bench.data, b"\x2a")
    debugger.call("naps", bench.data)
    assert debugger.run().reason is DebugStopReason.DONE
    assert debugger.thread.value == 42


def test_old_bytes_are_seen_until_they_are_adopted(bench):
    debugger = bench.debugger
    site = debugger.address_of("leaf+4")
    task = debugger.call("leaf", bench.data, cpu=1)
    debugger.operation("patch", bench.patch())
    while not debugger.vcpus()[1].pending:
        assert debugger.step().reason is DebugStopReason.STEP
    debugger.select(task)
    line = debugger.code_line(site)
    assert line.code.hex() == "0f1f440000"
    assert "cpu 1 may see the old byte 0 (0f -> cc)" in line.patch
    assert not debugger.vcpus()[1].has_serialized
    here = debugger.position
    assert debugger.step(3).reason is DebugStopReason.STEP
    assert debugger.registers()["rip"] == debugger.address_of("leaf+12")
    debugger.goto(here)
    debugger.adopt(1, site)
    debugger.select(task)
    line = debugger.code_line(site)
    assert line.code.hex() == "cc1f440000"
    assert "cpu 1 sees the new byte 0" in line.patch
    assert line.text == "int3"
    debugger.step(2)
    assert debugger.is_trapped(task)
    assert debugger.registers()["rip"] == site + 1
    with pytest.raises(DebugError, match="interrupts are off"):
        debugger.preempt(task)
    trapped = bench.state()
    debugger.step()
    assert debugger.registers()["rip"] == site + 5
    assert type(debugger.events[-1][1]).__name__ == "TrapTaken"
    debugger.back()
    assert bench.state() == trapped


def test_an_interrupt_waits_for_the_entry_of_an_int3(bench):
    debugger = bench.debugger
    task = debugger.call("leaf", bench.data, cpu=1)
    debugger.step()
    patch = debugger.operation("patch", bench.patch())
    while not debugger.vcpus()[1].pending:
        debugger.step()
    debugger.adopt(1)
    debugger.select(task)
    debugger.step()
    assert debugger.is_trapped(task)
    debugger.select(patch)
    while (stop := debugger.step()).reason is DebugStopReason.STEP:
        pass
    assert stop.reason is DebugStopReason.BLOCKED
    assert "cpu 1 is on the way from an int3" in stop.message
    assert debugger.run().reason is DebugStopReason.DONE
    assert patch.is_done


def test_grace_periods_end_when_the_user_says_so(bench):
    debugger, rcu, ended = bench.debugger, bench.kernel.rcu, []
    reader = debugger.call("spins", 5)
    debugger.step(2)
    waits = debugger.operation("waits", lambda: (rcu.synchronize(RcuFlavour.RCU_TASKS), ended.append(1)))
    debugger.step()
    stop = debugger.step()
    assert stop.reason is DebugStopReason.BLOCKED
    assert "grace period" in stop.message
    assert debugger.grace_periods == ()
    with pytest.raises(DebugError, match="none can"):
        debugger.end_grace_period("rcu_tasks")
    debugger.select(reader)
    debugger.run()
    assert debugger.grace_periods == ("rcu_tasks",)
    waiting = debugger.position
    debugger.end_grace_period("rcu_tasks")
    assert debugger.run().reason is DebugStopReason.DONE
    debugger.select(waits)
    assert debugger.run().reason is DebugStopReason.DONE
    assert ended == [1]
    debugger.goto(waiting)
    assert ended == []
    assert not waits.is_done
    assert debugger.run().reason is DebugStopReason.DONE
    assert ended == [1]


def test_an_operation_that_is_refused_says_so(bench):
    from emu.kernel.errors import KernelError

    def refused():
        raise KernelError(16, "busy as can be")

    debugger = bench.debugger
    thread = debugger.operation("refused", refused)
    stop = debugger.run()
    assert stop.reason is DebugStopReason.DONE
    assert "busy as can be" in stop.message
    assert "busy" in str(thread.error)


def test_an_operation_that_breaks_can_be_gone_back_from(bench):
    lock = bench.kernel.text_poke.text_mutex

    def breaks():
        with lock:
            raise ZeroDivisionError("oh")

    debugger = bench.debugger
    debugger.operation("breaks", breaks)
    stop = debugger.run()
    assert stop.reason is DebugStopReason.FAULT
    assert "ZeroDivisionError: oh" in stop.message
    assert debugger.back().reason is DebugStopReason.STEP


def test_one_debugger_at_a_time(bench):
    with pytest.raises(DebugError, match="another debugger"):
        Debugger(bench.kernel)
    bench.debugger.close()
    with Debugger(bench.kernel) as debugger:
        debugger.call("leaf", bench.data)
        assert debugger.run().reason is DebugStopReason.DONE


def test_what_makes_no_sense(bench):
    debugger = bench.debugger
    with pytest.raises(DebugError, match="no cpu 7"):
        debugger.call("leaf", cpu=7)
    operation = debugger.operation("patch", bench.patch())
    with pytest.raises(DebugError, match="no registers"):
        debugger.registers()
    with pytest.raises(DebugError, match="no registers"):
        debugger.wake(operation)
    task = debugger.call("leaf", bench.data)
    with pytest.raises(DebugError, match="no register 'r99'"):
        debugger.set_register("r99", 1)
    with pytest.raises(DebugError, match="unsigned"):
        debugger.set_register("rax", -1)
    with pytest.raises(DebugError, match="nothing to adopt"):
        debugger.adopt(0)
    with pytest.raises(DebugError, match="no goal"):
        debugger.run_to("lunch")
    with pytest.raises(DebugError, match="0 steps"):
        debugger.step(0)
    debugger.goto(0)
    with pytest.raises(DebugError, match="does not exist here"):
        debugger.select(task)
