"""speedscope's own format (https://www.speedscope.app/file-format-schema.json): an evented profile for each vCPU.

The unit is the instruction: a profile's length is the number of instructions executed by its vCPU.
"""

import json
from typing import Any

from emu.recording.model import CallNode, Recording

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def profile(recording: Recording, title: str) -> str:
    """A recording as JSON text."""
    numbers: dict[str, int] = {}

    def frame(node: CallNode) -> int:
        return numbers.setdefault(node.label, len(numbers))

    events: list[list[dict[str, Any]]] = [[] for _ in range(recording.cpus)]
    for change in recording.changes:
        kind = "O" if change.enters else "C"
        events[change.cpu].append({"type": kind, "frame": frame(change.node), "at": change.own})
    profiles = [
        {
            "type": "evented",
            "name": f"vCPU {cpu}",
            "unit": "none",
            "startValue": 0,
            "endValue": recording.executed[cpu],
            "events": own,
        }
        for cpu, own in enumerate(events)
    ]
    whole = {
        "$schema": SCHEMA,
        "name": title,
        "exporter": "tramplab",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in numbers]},
        "profiles": profiles,
    }
    return json.dumps(whole) + "\n"
