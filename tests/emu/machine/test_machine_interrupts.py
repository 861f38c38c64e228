"""Ctrl-C while the guest runs."""

import signal
import threading

import pytest

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
