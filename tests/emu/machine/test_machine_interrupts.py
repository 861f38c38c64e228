"""Ctrl-C while the guest runs."""

import signal
import threading

import pytest

from emu.errors import GuestTimeout

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.fixture(autouse=True)
def limited(bench):
    """Should the interrupt get lost, the test fails in seconds."""
    bench.machine.max_ticks = 1000


GUESTS = ["again: jmp again", "again:\ncall stub\njmp again", "again:\nint3\njmp again"]


@pytest.mark.parametrize("text", GUESTS)
def test_keyboard_interrupt_ends_a_guest_that_would_never_end(bench, text):
    bench.machine.on_int3.append(lambda vcpu: True)
    loop = bench.place(text, stub=bench.machine.host_call("nothing", lambda vcpu: None))
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        bench.cpu.call(loop)
    assert not bench.cpu.is_running
    assert bench.cpu.call(bench.place("mov eax, 4\nret")).value == 4


@pytest.mark.parametrize("method", ["native", "portable", "each"])
@pytest.mark.parametrize("text", ["again:\ninc r15\njmp again", "again:\ninc r15\ncall next\njmp again\nnext: ret"])
def test_interruptions_do_not_change_counts(make, method, text):
    """The watchdog stops a run wherever it happens to be; the counts tell exactly how far it came."""
    bench = make(counting=method)
    bench.machine.max_ticks = 1
    loop = bench.place(text)
    bench.cpu.regs.r15 = 0
    with pytest.raises(GuestTimeout):
        bench.cpu.call(loop)
    counts = bench.cpu.counts().by_address
    assert counts[loop] == bench.cpu.regs.r15
    length = len(counts)
    after = [address for address in counts if address > bench.cpu.regs.rip]
    assert sum(counts.values()) in range(length * (counts[loop] - 1), length * counts[loop] + 1)
    assert all(counts[address] in (counts[loop], counts[loop] - 1) for address in after)


def test_a_run_without_a_counter_repeats_no_instruction_after_an_interruption(make, monkeypatch):
    """``uc_emu_stop`` from another thread left rip one instruction back now and then."""
    monkeypatch.setattr("emu.host.watchdog.TICK_SECONDS", 0.0005)
    bench = make(counting="off")
    loop = "again:\ninc dword ptr [rsi]\ndec dword ptr [rsi]\ndec rdi\njne again"
    up_and_down = bench.place(f"{loop}\nmov eax, [rsi]\nret")
    assert [bench.cpu.call(up_and_down, 5_000_000, bench.data).value for _ in range(4)] == [0] * 4


def test_a_task_goes_on_after_keyboard_interrupt(bench):
    """Ctrl-C is a preemption: not an increment of the loop is lost."""
    count = bench.place("again:\ninc rax\ncmp byte ptr [rdi], 0\nje again\nret")
    task = bench.machine.task("counter", count, (bench.data,))
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        bench.cpu.run(task)
    before = task.register("rax")
    assert before > 0
    bench.machine.write_u8(bench.data, 1)
    stop = bench.cpu.run(task)
    assert before <= stop.value <= before + 1
