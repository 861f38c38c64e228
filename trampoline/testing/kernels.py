"""Booted kernels for sequences: each is booted once, and brought back to its first state for every further sequence."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from emu.machine import Snapshot
from emu.schedule.checkpoint import Checkpoint
from emu.structs import PERCPU
from trampoline.designs import Factory
from trampoline.flavour import Flavour
from trampoline.generator import Boot
from trampoline.lab import Tracing
from trampoline.testing.functions import Prototype
from trampoline.testing.watched import WatchedLab

MOST = 16
"""Kernels that are kept booted at the same time."""


@dataclass(frozen=True, slots=True)
class Mitigations:
    """What a boot decides about emitted code: where returns jump to (nowhere: a plain ret), and whether calls are
    accounted (retbleed=stuff).
    """

    return_thunk: str = ""
    call_depth: bool = False


MITIGATIONS = {
    "none": Mitigations(),
    "return thunk": Mitigations("its_return_thunk"),
    "call depth": Mitigations("call_depth_return_thunk", call_depth=True),
}
"""Boots that sequences run on, by name."""


@dataclass(frozen=True, slots=True)
class _Booted:
    watched: WatchedLab
    snapshot: Snapshot
    checkpoint: Checkpoint


class Kernels:
    """Kernels of one design with the same functions. Nothing is shared with other ``Kernels``."""

    def __init__(self, design: str | Factory, prototypes: Sequence[Prototype], *, vcpus: int, counts: bool) -> None:
        self._design, self._prototypes, self._vcpus, self._counts = design, tuple(prototypes), vcpus, counts
        self._booted: OrderedDict[tuple[str, str, str | None], _Booted] = OrderedDict()
        self._thunks: dict[tuple[str, str], int] = {}

    def take(self, flavour: Flavour, mitigations: str = "none", metadata: str | None = None) -> WatchedLab:
        """A kernel as it was after its boot. One of a kind at a time."""
        key = (flavour.name, mitigations, metadata)
        booted = self._booted.get(key)
        if booted is None:
            booted = self._booted[key] = self._boot(flavour, MITIGATIONS[mitigations], metadata)
            while len(self._booted) > MOST:
                self._booted.popitem(last=False)[1].watched.close()
        else:
            self._booted.move_to_end(key)
            booted.watched.lab.kernel.machine.restore(booted.snapshot)
            booted.checkpoint.restore()
        return booted.watched

    def drop(self, watched: WatchedLab) -> None:
        """Give a kernel up whose state nobody knows any more."""
        for key, booted in list(self._booted.items()):
            if booted.watched is watched:
                del self._booted[key]
        watched.close()

    def close(self) -> None:
        """Give all machines back."""
        while self._booted:
            self._booted.popitem()[1].watched.close()

    def _boot(self, flavour: Flavour, mitigations: Mitigations, metadata: str | None) -> _Booted:
        watched = WatchedLab(
            self._prototypes,
            flavour=flavour,
            design=self._design,
            vcpus=self._vcpus,
            counts=self._counts,
            boot=self._decided(flavour, mitigations),
            metadata=metadata,
        )
        machine = watched.lab.kernel.machine
        outside = [machine, *machine.vcpus, *machine.tasks]
        checkpoint = Checkpoint([watched, machine.host_calls, machine.on_int3, machine.on_fault], outside)
        return _Booted(watched, machine.snapshot(), checkpoint)

    def _decided(self, flavour: Flavour, mitigations: Mitigations) -> Boot:
        thunk = None
        if mitigations.return_thunk:
            key = (flavour.name, mitigations.return_thunk)
            if key not in self._thunks:
                # Where it stands does not depend on what the boot decides: another one tells.
                with Tracing(flavour, counting="off") as probe:
                    self._thunks[key] = probe.kernel.kallsyms.address(mitigations.return_thunk)
            thunk = self._thunks[key]
        return Boot(thunk, PERCPU.offset("call_depth") if mitigations.call_depth else None)
