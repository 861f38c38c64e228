"""Going forward and back on the line of time."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.debug import AtAddress, DataAccess, DebugError, DebugStopReason

WALKS = st.lists(
    st.sampled_from(
        ("step", "steps", "back", "backs", "goto", "over", "out", "run", "other", "change", "write", "break", "adopt",
         "back_over", "back_out", "run_back", "call", "patch", "wake", "preempt", "place")
    ),
    min_size=5,
    max_size=30,
)  # fmt: skip


@given(WALKS, st.randoms(use_true_random=False))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_position_is_a_state_however_one_comes_there(make_bench, walk, random):
    """The first state that is seen at a position is the one that is found there later, until the line changes."""
    bench = make_bench()
    debugger = bench.debugger
    debugger._record._spacing = 7
    debugger.call("outer", bench.data, 3)
    seen = {}

    def look():
        seen.setdefault(debugger.position, bench.state())
        assert bench.state() == seen[debugger.position]

    def do(name):
        thread = random.choice(debugger.threads) if debugger.threads else None
        if thread is not None:
            debugger.select(thread)
        before, end = debugger.position, debugger.end
        try:
            act(name, thread)
        except DebugError:
            assert debugger.position == before
        if debugger.end < end or (before < end and debugger.position > before and name != "goto"):
            # Something else may have been done from there on.
            for position in [position for position in seen if position > before]:
                del seen[position]
        look()

    def act(name, thread):
        if name in ("call", "patch") and len(debugger.threads) < 4:
            if name == "call":
                debugger.call(random.choice(("outer", "naps", "copies")), bench.data, 2, cpu=random.randrange(2))
            else:
                debugger.operation("patch", bench.patch())
        elif name == "goto":
            debugger.goto(random.randint(0, debugger.end))
        elif name == "adopt":
            debugger.adopt(random.randrange(2))
        elif thread is None:
            debugger.call("outer", bench.data, 2)
        elif name == "step":
            debugger.step()
        elif name == "steps":
            debugger.step(random.randint(2, 30))
        elif name == "back":
            debugger.back()
        elif name == "backs":
            debugger.back(random.randint(1, 20))
        elif name == "change":
            debugger.set_register("r11", random.randrange(1 << 64))
        elif name == "write":
            debugger.write(bench.data + random.randrange(64), random.randbytes(9))
        elif name == "break":
            debugger.add(AtAddress("leaf+9"))
        elif name == "wake":
            debugger.wake(thread)
        elif name == "preempt":
            debugger.preempt(thread)
        elif name == "place":
            debugger.place(thread, random.randrange(2))
        else:
            moves = {"over": "step_over", "out": "step_out", "other": "step"}
            getattr(debugger, moves.get(name, name))()

    look()
    for name in walk:
        do(name)
    last = debugger.position
    for position in sorted(seen, key=lambda _: random.random()):
        if position <= debugger.end:
            debugger.goto(position)
            assert bench.state() == seen[position]
    debugger.goto(last)
    look()
    debugger.close()


def test_changes_are_undone_and_made_again(bench):
    debugger = bench.debugger
    debugger.call("outer", bench.data, 3)
    debugger.step(3)
    debugger.write(bench.data, (1000).to_bytes(8, "little"))
    debugger.set_register("rsi", 1)
    changed = debugger.position
    assert debugger.run().reason is DebugStopReason.DONE
    assert debugger.thread.value == 1001
    debugger.goto(changed - 2)
    assert debugger.registers()["rsi"] == 3
    assert debugger.read(bench.data, 8) == bytes(8)
    debugger.goto(debugger.end)
    assert debugger.thread.value == 1001
    debugger.goto(changed - 2)
    debugger.run()
    assert debugger.thread.value == 3


def test_a_step_back_undoes_what_was_changed_behind_it(bench):
    debugger = bench.debugger
    debugger.call("outer", bench.data, 3)
    debugger.step(4)
    before = bench.state()
    debugger.step()
    debugger.set_register("rax", 77)
    assert debugger.back().reason is DebugStopReason.STEP
    assert bench.state() == before


def test_the_start_is_where_back_ends(bench):
    debugger = bench.debugger
    debugger.call("leaf", bench.data)
    debugger.step(2)
    assert debugger.back(5).reason is DebugStopReason.START
    assert debugger.position == 1
    assert debugger.back().reason is DebugStopReason.START
    debugger.goto(0)
    assert debugger.threads == ()
    with pytest.raises(DebugError, match="no thread"):
        debugger.step()
    with pytest.raises(DebugError, match="no position 99"):
        debugger.goto(99)


def test_over_and_out_are_undone_by_their_ways_back(bench):
    debugger = bench.debugger
    debugger.call("outer", bench.data, 2)
    forth = [debugger.position]
    while debugger.step_over().reason is DebugStopReason.STEP:
        forth.append(debugger.position)
    back = []
    while debugger.position > 1:
        assert debugger.back_over().reason is DebugStopReason.STEP
        back.append(debugger.position)
    assert back == forth[::-1]
    debugger.add(AtAddress("leaf+9"))
    debugger.run()
    assert [call.name.partition("+")[0] for call in debugger.backtrace()] == ["leaf", "outer"]
    inside = debugger.position
    assert debugger.step_out().reason is DebugStopReason.STEP
    assert debugger.symbol(debugger.rip).startswith("outer+")
    debugger.goto(inside)
    assert debugger.back_out().reason is DebugStopReason.STEP
    assert debugger.code_line(debugger.rip).text == "call leaf"
    assert debugger.back_out().reason is DebugStopReason.START
    assert debugger.position == 1


def test_a_repeated_instruction_is_one_step_over(bench):
    debugger = bench.debugger
    debugger.call("copies", bench.data)
    while "rep" not in debugger.code_line(debugger.rip).text:
        debugger.step()
    debugger.step()
    assert "rep" in debugger.code_line(debugger.rip).text
    assert debugger.step_over().reason is DebugStopReason.STEP
    assert debugger.code_line(debugger.rip).text == "mov rax, rcx"
    assert debugger.registers()["rcx"] == 0


def test_going_back_makes_few_steps_again(bench):
    debugger = bench.debugger
    debugger.call("spins", 30_000)
    assert debugger.step(60_000).reason is DebugStopReason.STEP
    record = debugger._record
    assert record.position - record.checkpoint_before(record.position) <= record._spacing
    ecx = debugger.registers()["rcx"]
    debugger.back()
    debugger.back()
    assert debugger.registers()["rcx"] == ecx + 1
    assert debugger.step(2).position == 60_001


def test_checkpoints_stay_few(bench):
    debugger = bench.debugger
    debugger._record._spacing = 10
    debugger.call("spins", 5_000)
    debugger.run()
    assert 20 < len(debugger._record._kept) <= 129
    debugger.goto(4_321)
    assert debugger.registers()["rcx"] == 5_000 - (4_321 - 2) // 2


def test_a_run_is_interrupted(bench):
    debugger = bench.debugger
    debugger.call("spins", 1_000_000)
    debugger.interrupt()
    assert debugger.run().reason is DebugStopReason.INTERRUPTED
    assert debugger.run(limit=1000).reason is DebugStopReason.LIMIT
    assert debugger.run().reason is DebugStopReason.DONE
    assert debugger.thread.value == 7


def test_closing_leaves_the_kernel_usable(bench):
    debugger, kernel = bench.debugger, bench.kernel
    debugger.call("outer", bench.data, 2)
    debugger.add(DataAccess(bench.data, 8))
    debugger.step(9)
    debugger.operation("patch", bench.patch("spins"))
    debugger.step(2)
    debugger.close()
    assert kernel.call("leaf", bench.data + 64).value == 1
    assert kernel.text_poke.text_mutex.held is False
