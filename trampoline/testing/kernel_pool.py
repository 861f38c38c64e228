"""Booted kernels for sequences: each boots once and is restored to its first state for every further sequence."""

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
"""Maximum number of kernels kept booted at the same time."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to boot a release: its configuration, its return thunk (empty: a plain ret), and call-depth accounting
    (retbleed=stuff).
    """

    release: str
    config: str = "voluntary"
    return_thunk: str = ""
    call_depth: bool = False
    max_links: int = 0
    """Maximum number of programs on one function; 0: the release's own limit. A low limit is reached with fewer steps.
    """
    any_metadata: bool = True
    """True: booted with each metadata back end; False: with the design's default only."""


VARIANTS = (
    Variant("6.1", max_links=8, any_metadata=False),
    Variant("6.12"),
    Variant("6.12", return_thunk="call_depth_return_thunk", call_depth=True, max_links=8, any_metadata=False),
    Variant("7.2", max_links=8),
    Variant("7.2", "lazy", return_thunk="its_return_thunk", any_metadata=False),
)
"""Kernels that sequences run on; a release that is not listed has the plain boot only."""


@cache
def limited(release: KernelRelease, variant: Variant) -> KernelRelease:
    """Release with the link limit of a variant."""
    if not variant.max_links:
        return release
    return replace(release, trampoline=replace(release.trampoline, max_links=variant.max_links))


def variants(releases: Sequence[KernelRelease]) -> list[Variant]:
    """Variants of some releases."""
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
    """Kernels of one design with the same functions. Shares nothing with other ``Kernels``."""

    def __init__(self, design: DesignChoice, prototypes: Sequence[Prototype], *, vcpus: int, counts: bool) -> None:
        self._design, self._prototypes, self._vcpus, self._counts = design, tuple(prototypes), vcpus, counts
        self._booted: OrderedDict[tuple[KernelRelease, Variant, str | None], _Booted] = OrderedDict()
        self._thunks: dict[tuple[str, str, str], int] = {}

    def take(self, release: KernelRelease, variant: Variant, metadata: str | None = None) -> WatchedLab:
        """Kernel in its state after boot. At most one user per (release, variant, metadata) at a time."""
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
        """Closes a kernel whose state is no longer known."""
        for key, booted in list(self._booted.items()):
            if booted.watched is watched:
                del self._booted[key]
        watched.close()

    def close(self) -> None:
        """Closes all kernels."""
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
                # The thunk's address does not depend on the boot's choices, so a probe kernel supplies it.
                with Lab(release, variant.config, counting="off") as probe:
                    self._thunks[key] = probe.kernel.kallsyms.address(variant.return_thunk)
            thunk = self._thunks[key]
        return Boot(thunk, PERCPU.offset("call_depth") if variant.call_depth else None)
