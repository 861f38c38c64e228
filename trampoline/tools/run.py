"""Run of a BPF object: load, attach, call functions; results, and the cost of each call."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from emu.counting.counts import InstructionCounts
from emu.machine.vcpu import Call
from emu.recording import Recording, record
from trampoline.bpf.helpers.runtime.printing import TraceLine
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.ringbuf import RingBuffer
from trampoline.lab import Workload, open_workload
from trampoline.lab.call_text import CallText


@dataclass(frozen=True, slots=True)
class Called:
    """One call: its result as a C value, its instructions, and their number ``before`` programs are attached."""

    text: str
    value: int | None
    counts: InstructionCounts
    before: int


@dataclass(slots=True)
class RunOutcome:
    """Result of a run."""

    attached: list[str] = field(default_factory=list)
    """Each program and its target."""
    calls: list[Called] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    maps: dict[str, Any] = field(default_factory=dict)
    """Contents of maps: a dictionary, or the records of a ring buffer."""
    trace: list[TraceLine] = field(default_factory=list)
    recording: Recording | None = None
    """Recording of attach and calls, if requested."""

    def to_json(self) -> dict[str, Any]:
        """The result as plain values; bytes in hex."""
        return {
            "attached": self.attached,
            "calls": [
                {
                    "call": call.text,
                    "value": call.value,
                    "instructions": call.counts.instructions,
                    "before": call.before,
                    "by_phase": dict(call.counts.by_phase),
                    "unbalanced_returns": call.counts.unbalanced_returns,
                }
                for call in self.calls
            ],
            "variables": plain(self.variables),
            "maps": plain(self.maps),
            "trace": [line.text for line in self.trace],
        }


def run_object(workload: Workload, *, recorded: bool = False) -> RunOutcome:
    """Open an object, attach its programs, make the calls one after the other, and read everything.

    Each call is made before as well, for what it costs without programs. ``recorded``: attaching and the calls are
    recorded. What ``open_workload`` and calls raise.
    """
    outcome = RunOutcome()
    with open_workload(replace(workload, live=True, parallel=False)) as ready, ExitStack() as recording:
        before = [_counts(ready.call(ready.place(CallText.parse(call.text)))) for call in ready.calls]
        if recorded:
            outcome.recording = recording.enter_context(record(ready.lab.kernel))
        ready.attach()
        outcome.attached += ready.attached()
        for call, alone in zip(ready.calls, before, strict=True):
            made = ready.call(call)
            value = call.model.returned(made.value)
            outcome.calls.append(Called(call.text, value, _counts(made), alone.instructions))
        recording.close()
        if ready.loaded is not None:
            outcome.variables = dict(ready.loaded.data)
            shown = ready.loaded.maps.keys() - ready.loaded.data.maps
            outcome.maps = {name: _content(found) for name, found in ready.loaded.maps.items() if name in shown}
        outcome.trace = list(ready.lab.trace)
    return outcome


def _counts(made: Call) -> InstructionCounts:
    assert made.counts is not None
    return made.counts


def _content(found: BpfMap) -> Any:
    return list(found) if isinstance(found, RingBuffer) else dict(found)


def plain(value: Any) -> Any:
    """A map's content as JSON has it: bytes in hex, records as objects, keys as text."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
