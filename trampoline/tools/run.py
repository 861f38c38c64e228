"""An object run as a whole: loaded, attached, its functions called; what it saw, and what each call cost."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emu.errors import GuestFault
from emu.recording import Recording, record
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.helpers.runtime.printing import TraceLine
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.ringbuf import RingBuffer
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.lab.call_text import CallText
from trampoline.lab.lab import Lab
from trampoline.lab.links.link import Link
from trampoline.lab.loaded_object import LoadedObject

MAX_INSTRUCTIONS = 50_000_000
"""Of one call: what takes longer is taken for a loop without an end."""


@dataclass(frozen=True, slots=True)
class Called:
    """One call: what it returned (as a C value), and the instructions that it took with and without the programs."""

    text: str
    value: int | None
    instructions: int
    before: int
    by_phase: Mapping[str, int]
    unbalanced_returns: int


@dataclass(slots=True)
class RunOutcome:
    """What a run showed."""

    attached: list[str] = field(default_factory=list)
    """Each program and where it is."""
    calls: list[Called] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    maps: dict[str, Any] = field(default_factory=dict)
    """Contents: a dictionary, or the records of a ring buffer."""
    trace: list[TraceLine] = field(default_factory=list)
    recording: Recording | None = None
    """Of attaching and the calls, where that was asked for."""

    def to_json(self) -> dict[str, Any]:
        """As plain values; bytes in hex."""
        return {
            "attached": self.attached,
            "calls": [
                {
                    "call": call.text,
                    "value": call.value,
                    "instructions": call.instructions,
                    "before": call.before,
                    "by_phase": dict(call.by_phase),
                    "unbalanced_returns": call.unbalanced_returns,
                }
                for call in self.calls
            ],
            "variables": plain(self.variables),
            "maps": plain(self.maps),
            "trace": [line.text for line in self.trace],
        }


def run_object(
    path: Path,
    calls: Sequence[str],
    *,
    flavour: str = "7.2",
    config: str = "voluntary",
    design: str = "per-function",
    kernel_btf: Path | None = None,
    names: Sequence[str] | None = None,
    data: Mapping[str, Any] | None = None,
    targets: Mapping[str, str] | None = None,
    cookies: Mapping[str, int] | None = None,
    recorded: bool = False,
) -> RunOutcome:
    """Open an object, attach its programs, make the calls, and read everything.

    Without a ``kernel_btf`` the kernel's types are those that its test functions declare. Each call is made before as
    well, for what it costs without programs. ``recorded``: attaching and the calls are recorded. Raises what
    ``Lab.open``, ``LoadedObject.attach_all`` and calls raise.
    """
    wanted = [CallText.parse(text) for text in calls]
    obj = BpfObject.open(path)
    btf = None if kernel_btf is None else Btf.read(kernel_btf)
    outcome = RunOutcome()
    with Lab(flavour, config, btf=btf, design=design) as lab:
        lab.load_testmod()
        before = [_call(lab, call) for call in wanted]
        options = {"names": names, "data": data, "targets": targets}
        with lab.open(obj, **options) as loaded, ExitStack() as calling:
            if recorded:
                outcome.recording = calling.enter_context(record(lab.kernel))
            loaded.attach_all(cookies)
            for link in loaded.links:
                outcome.attached.append(f"{link.program.name} ({link.program.attach_type}) on {_where(link)}")
            for call, alone in zip(wanted, before, strict=True):
                made = _call(lab, call)
                outcome.calls.append(replace(made, before=alone.instructions))
            calling.close()
            outcome.variables = dict(loaded.data)
            outcome.maps = {name: _content(found) for name, found in _own_maps(obj, loaded).items()}
        outcome.trace = list(lab.trace)
    return outcome


def _call(lab: Lab, call: CallText) -> Called:
    model = lab.target(call.function).model
    placed = call.place(model, lab.kernel)
    try:
        made = lab.call(
            call.function, *placed.registers, stack_args=placed.stack, max_instructions=MAX_INSTRUCTIONS
        )
        counts = made.counts
    except GuestFault as fault:
        raise call_error(lab, call.text, fault) from fault
    finally:
        placed.free(lab.kernel)
    if counts is None:
        raise TrampolineError("nothing is counted here")
    value = model.returned(made.value)
    return Called(call.text, value, counts.instructions, 0, counts.by_phase, counts.unbalanced_returns)


def call_error(lab: Lab, text: str, fault: GuestFault) -> TrampolineError:
    """What is said of a call that faulted: the call, the program's source line where one is to blame, the fault."""
    line = lab.source_of(fault)
    where = f"{line}: {line.text.strip()}: " if line is not None else ""
    return TrampolineError(f"{text}: {where}{fault}")


def _where(link: Link) -> str:
    functions = link.functions
    return functions[0] if len(functions) == 1 else f"{len(functions)} functions, {functions[0]} first"


def _own_maps(obj: BpfObject, loaded: LoadedObject) -> dict[str, BpfMap]:
    """Maps but for those of global variables, which are shown by name."""
    of_data = {variable.map for variable in obj.variables.values()}
    return {name: found for name, found in loaded.maps.items() if name not in of_data}


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
