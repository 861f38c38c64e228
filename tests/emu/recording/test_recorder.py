import pytest

from asm.encodings import NOP5, jmp_rel32
from emu.errors import MachineError
from emu.events import CpuSerialized, TextPatched
from emu.host import libunicorn
from emu.recording import record
from recording_text import spans, tree


def test_counters_go_on_as_before(traced):
    before = traced.kernel.call("bpf_fentry_test1", 1)
    counters = [vcpu.counter for vcpu in traced.machine.vcpus]
    with record(traced.kernel):
        during = traced.kernel.call("bpf_fentry_test1", 1)
    assert [vcpu.counter for vcpu in traced.machine.vcpus] == counters
    after = traced.kernel.call("bpf_fentry_test1", 1)
    assert before.counts == during.counts == after.counts


@pytest.mark.parametrize("counting", ["native", "portable", "each", "off"])
def test_every_way_of_counting(boot, counting):
    traced = boot(counting=counting)
    traced.place(f="mov ecx, 300\n.Lagain: call g\ndec ecx\njne .Lagain\nret\ng: ret")
    with record(traced.kernel) as recording:
        call = traced.kernel.call("f")
    assert recording.instructions == 2 + 300 * 4
    assert recording.counts == call.counts
    assert (traced.machine.vcpus[0].counter is None) == (counting == "off")


def test_a_long_run_is_worked_off_within(traced):
    traced.place(f="mov ecx, 70000\n.Lagain: dec ecx\njne .Lagain\nret")
    with record(traced.kernel) as recording:
        traced.kernel.call("f")
    assert (tree(recording), recording.instructions) == ("f 1x 140002", 140002)


@pytest.mark.parametrize("counting", ["native", "portable"])
def test_the_watchdogs_stops_lose_nothing(boot, monkeypatch, counting):
    traced = boot(counting=counting)
    traced.place(f="mov ecx, 1000\n.Lagain: dec ecx\njne .Lagain\nret")
    watched = traced.machine.vcpus[0].engine._watched
    blocks, stops = 0, 0

    def read(*args):
        nonlocal blocks, stops
        blocks += 1
        if blocks % 100 == 0:
            watched.interrupt()
            stops += watched.interrupted
        return reg_read(*args)

    reg_read = libunicorn.reg_read
    monkeypatch.setattr(libunicorn, "reg_read", read)
    with record(traced.kernel) as recording:
        call = traced.kernel.call("f")
    assert stops > 5
    assert recording.by_address == call.counts.by_address
    assert spans(recording) == "f 2002"


def test_text_that_changes_meanwhile(traced):
    f = traced.kernel.function("bpf_fentry_test1")
    with record(traced.kernel) as recording:
        traced.kernel.call("bpf_fentry_test1", 1)
        assert recording.places[f.site].text.startswith("nop")
        traced.kernel.text_poke.text_poke_bp(f.site, jmp_rel32(f.site, f.site + 5))
        traced.kernel.call("bpf_fentry_test1", 1)
    assert recording.places[f.site].text.startswith("jmp")
    assert recording.by_address[f.site] == 2


def test_events_stand_where_they_happened(traced):
    site = traced.kernel.function("bpf_fentry_test1").site
    with record(traced.kernel) as recording:
        traced.kernel.call("bpf_fentry_test1", 1)
        traced.kernel.text_poke.text_poke_bp(site, jmp_rel32(site, site + 5))
        traced.kernel.call("bpf_fentry_test1", 1)
    traced.kernel.text_poke.text_poke_bp(site, NOP5)
    assert [type(mark.event) for mark in recording.marks] == [TextPatched, CpuSerialized] * 3
    assert {(mark.position, mark.cpu) for mark in recording.marks} == {(3, None)}


def test_not_while_a_vcpu_runs(traced):
    def begin(_vcpu):
        with record(traced.kernel):
            pass

    traced.host("begin", begin)
    traced.place(f="push rbx\ncall begin\npop rbx\nret")
    with pytest.raises(MachineError, match="a vCPU is running"):
        traced.kernel.call("f")
    assert not traced.kernel.events.has_readers


def test_a_kernel_that_is_closed_meanwhile(boot):
    traced = boot()
    with record(traced.kernel) as recording:
        traced.kernel.call("bpf_fentry_test1", 1)
        traced.kernel.close()
    assert recording.instructions == 3
