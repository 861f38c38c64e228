"""Recordings of trampolines: exact in every design, and with the call stack that there is."""

import pytest

from emu.recording import NodeKind, record
from recording_text import spans
from trampoline.bpf.errors import KernelError
from trampoline.designs import DESIGNS
from trampoline.lab import Workload, open_workload
from trampoline.tools.report.observed_calls import observe


@pytest.mark.parametrize("flavour", ["6.1", "6.12", "7.2"])
@pytest.mark.parametrize("design", DESIGNS)
def test_counts_are_the_counters(design, flavour):
    for programs in (("fentry",), ("fexit",), ("fmod_ret",), ("fexit", "fmod_ret", "fentry", "fexit")):
        options = Workload("bpf_fentry_test4", programs, design=design, flavour=flavour)
        try:
            with open_workload(options) as ready:
                call = ready.calls[0]
                plain = ready.lab.call(call.address, *call.registers)
                counts = plain.counts
                with record(ready.lab.kernel) as recording:
                    recorded = ready.lab.call(call.address, *call.registers)
        except KernelError:
            continue
        assert (recorded.value, recorded.counts, recording.counts) == (plain.value, counts, counts)
        text = spans(recording)
        assert text.splitlines()[0] == f"bpf_fentry_test4 {counts.instructions}"
        (root,) = recording.root.children
        assert root.calls == 1
        runs = [node for node in root.walk() if node.name.startswith("bpf_prog_")]
        assert sum(node.calls for node in runs if node.kind is NodeKind.FUNCTION) == len(programs)
        origins = [node for node in root.walk() if node.name == "bpf_fentry_test4"][1:]
        assert sum(node.calls for node in origins) == ("fexit" in programs or "fmod_ret" in programs)


def test_the_call_stack_of_a_trampoline():
    call = observe(Workload("bpf_fentry_test1", ("fexit",), calls=("bpf_fentry_test1(41)",))).calls[0]
    assert call.value == 42
    assert [line for line in spans(call.recording).splitlines() if line.count("  ") < 4] == [
        "bpf_fentry_test1 116",
        "  bpf_trampoline_6442450945 114",
        "    [entry] 3",
        "    [save] 4",
        "    [origin] 13",
        "      __bpf_tramp_enter 5",
        "      bpf_fentry_test1 2",
        "    [enter] 37",
        "      __bpf_prog_enter_recur 29",
        "    [program] 4",
        "      bpf_prog_fexit0 2",
        "    [exit] 41",
        "      __bpf_prog_exit_recur 37",
        "    [origin] 7",
        "      __bpf_tramp_exit 5",
        "    [restore] 2",
        "    [leave] 3",
    ]


def test_a_recording_within_a_recording():
    observed = observe(Workload("bpf_fentry_test1", calls=("bpf_fentry_test1(1)", "bpf_fentry_test1(2)@0")))
    whole = observed.recording
    assert whole.instructions == sum(call.recording.instructions for call in observed.calls)
    assert [call.recording.executed for call in observed.calls] == [[whole.executed[0] // 2]] * 2
    made = [type(mark.event).__name__ for mark in whole.marks if mark.position == 0]
    assert {"ImageMade", "TextPatched", "CpuSerialized"} <= set(made)
    assert not observed.calls[0].recording.marks
