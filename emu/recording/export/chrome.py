"""Chrome's trace format, which Perfetto and chrome://tracing open.

"Trace Event Format" (Google, 2016): a JSON object whose ``traceEvents`` are duration events (``B`` and ``E``), instant
events (``i``) and metadata (``M``). Times are in microseconds there; here one microsecond is one instruction. ``ts``
counts the instructions of all vCPUs, so that the tracks show which vCPU ran when; ``tts``, the thread's clock, counts
those of the track's own vCPU.
"""

import json
from dataclasses import fields
from typing import Any

from emu.events import Event, PokePhase
from emu.recording.model import Mark, Recording, TreeChange

PROCESS = 1
"""The process of all tracks."""


def trace(recording: Recording, title: str) -> str:
    """A recording as JSON text: a track for each vCPU and one for process context, with its events."""
    events: list[dict[str, Any]] = [_name("process_name", 0, title)]
    for cpu in range(recording.cpus):
        events.append(_name("thread_name", cpu, f"vCPU {cpu}"))
        events.append(_metadata("thread_sort_index", cpu, {"sort_index": cpu}))
    if any(_track(mark) is None for mark in recording.marks):
        events.append(_name("thread_name", recording.cpus, "process context"))
        events.append(_metadata("thread_sort_index", recording.cpus, {"sort_index": recording.cpus}))
    timed: list[TreeChange | Mark] = sorted([*recording.changes, *recording.marks], key=lambda one: one.position)
    for one in timed:
        events.append(_change(one) if isinstance(one, TreeChange) else _mark(one, recording.cpus))
    whole = {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"title": title, "clock": "1 us is 1 instruction", "instructions": recording.instructions},
    }
    return json.dumps(whole, indent=0) + "\n"


def _change(change: TreeChange) -> dict[str, Any]:
    # The end repeats the name, and events have no arguments: some readers match both.
    return {
        "name": change.node.label,
        "cat": change.node.kind.value,
        "ph": "B" if change.enters else "E",
        "pid": PROCESS,
        "tid": change.cpu,
        "ts": change.position,
        "tts": change.own,
    }


def _mark(mark: Mark, process_context: int) -> dict[str, Any]:
    cpu = _track(mark)
    event = mark.event
    return {
        "name": describe(event),
        "cat": "event",
        "ph": "i",
        "s": "t",
        "pid": PROCESS,
        "tid": process_context if cpu is None else cpu,
        "ts": mark.position,
        "args": {field.name: _plain(getattr(event, field.name)) for field in fields(event)},
    }


def describe(event: Event) -> str:
    """Text of an event with its subject: ``image made: bpf_trampoline_1``."""
    about = getattr(event, "name", None) or getattr(event, "phase", None) or getattr(event, "flavour", None)
    if about is None:
        return kind_of(event)
    return f"{kind_of(event)}: {about.name.replace('_', ' ') if isinstance(about, PokePhase) else about}"


def kind_of(event: Event) -> str:
    """Kind of an event in words: ``image made``."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__).strip()


def _track(mark: Mark) -> int | None:
    cpu = getattr(mark.event, "vcpu", mark.cpu)
    assert cpu is None or isinstance(cpu, int)
    return cpu


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex(" ")
    return f"{value:#x}" if type(value) is int and value > 1 << 16 else value


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return _metadata(kind, track, {"name": name})


def _metadata(kind: str, track: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": track, "args": args}
