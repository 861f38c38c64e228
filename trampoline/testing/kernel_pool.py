"""Booted kernels for sequences: each is booted once, and brought back to its first state for every further sequence."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from emu.kernel.kernel import KernelState
from emu.kernel.structs import PERCPU
from trampoline.bpf.boot import Boot
from trampoline.designs import DesignChoice
from trampoline.lab import Lab
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.instrumented_lab import WatchedLab
from trampoline.testing.traced_functions import Prototype

MOST = 16
"""Kernels that are kept booted at the same time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to boot a release: how it was built, where returns jump to (nowhere: a plain ret), whether calls are
    accounted (retbleed=stuff).
    """

    release: str
    config: str = "voluntary"
    return_thunk: str = ""
    call_depth: bool = False
    max_links: int = 0
    """Programs on one function, if not as many as the release takes: full is sooner full, and it is one rule."""
    any_metadata: bool = True
    """Whether it is booted with each metadata back end, not with the design's own choice alone."""


VARIANTS = (
    Variant("6.1", max_links=8, any_metadata=False),
    Variant("6.12"),
    Variant("6.12", return_thunk="call_depth_return_thunk", call_depth=True, max_links=8, any_metadata=False),
    Variant("7.2", max_links=8),
    Variant("7.2", "lazy", return_thunk="its_return_thunk", any_metadata=False),
)
"""Kernels that sequences run on; of other releases that somebody brings the plain boot."""


@cache
def limited(release: KernelRelease, variant: Variant) -> KernelRelease:
    """A release with the limit of a variant."""
    if not variant.max_links:
        return release
    return replace(release, trampoline=replace(release.trampoline, max_links=variant.max_links))


def variants(releases: Sequence[KernelRelease]) -> list[Variant]:
    """Those of some releases."""
    return [
        variant
        for release in releases
        for variant in [one for one in VARIANTS if one.release == release.name] or [Variant(release.name)]
    ]


@dataclass(frozen=True, slots=True)
class _Booted:
    watched: WatchedLab
    state: KernelState


class Kernels:
    """Kernels of one design with the same functions. Nothing is shared with other ``Kernels``."""

    def __init__(self, design: DesignChoice, prototypes: Sequence[Prototype], *, vcpus: int, counts: bool) -> None:
        self._design, self._prototypes, self._vcpus, self._counts = design, tuple(prototypes), vcpus, counts
        self._booted: OrderedDict[tuple[KernelRelease, Variant, str | None], _Booted] = OrderedDict()
        self._thunks: dict[tuple[str, str, str], int] = {}

    def take(self, release: KernelRelease, variant: Variant, metadata: str | None = None) -> WatchedLab:
        """A kernel as it was after its boot. One of a kind at a time."""
        key = (release, variant, metadata)
        booted = self._booted.get(key)
        if booted is None:
            booted = self._booted[key] = self._boot(*key)
            while len(self._booted) > MOST:
                self._booted.popitem(last=False)[1].watched.close()
        else:
            self._booted.move_to_end(key)
            booted.watched.lab.kernel.restore(booted.state)
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

    def __enter__(self) -> "Kernels":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _boot(self, release: KernelRelease, variant: Variant, metadata: str | None) -> _Booted:
        watched = WatchedLab(
            self._prototypes,
            release=limited(release, variant),
            design=self._design,
            vcpus=self._vcpus,
            counts=self._counts,
            config=variant.config,
            boot=self._decided(release, variant),
            metadata=metadata,
        )
        return _Booted(watched, watched.lab.kernel.checkpoint([watched]))

    def _decided(self, release: KernelRelease, variant: Variant) -> Boot:
        thunk = None
        if variant.return_thunk:
            key = (release.name, variant.config, variant.return_thunk)
            if key not in self._thunks:
                # Where it stands does not depend on what the boot decides: another one tells.
                with Lab(release, variant.config, counting="off") as probe:
                    self._thunks[key] = probe.kernel.kallsyms.address(variant.return_thunk)
            thunk = self._thunks[key]
        return Boot(thunk, PERCPU.offset("call_depth") if variant.call_depth else None)
