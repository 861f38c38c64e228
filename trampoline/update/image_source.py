"""What a trampoline needs of the images that its site reaches: where they come from differs from design to design."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from trampoline.bpf.prog import BpfProg
from trampoline.image.generator import TrampFlag
from trampoline.update.target import LinkEntry, TraceTarget

if TYPE_CHECKING:
    from trampoline.update.bpf_trampoline import BpfTrampoline


class SiteImage(Protocol):
    """What a site reaches: an image of the trampoline's own, or one that several share."""

    @property
    def image(self) -> int:
        """Guest address."""
        ...

    @property
    def by_jmp(self) -> bool:
        """Whether sites jump to it."""
        ...

    def put(self) -> None:
        """Its trampoline needs it no more, and CPUs may be in it."""

    def discard(self) -> None:
        """Its trampoline needs it no more, and no site reached it."""


class ImageSource(Protocol):
    """Where trampolines have their images from."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Refuse what no image can be made for. KernelError."""

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Make room for what images need beside themselves, before the first of a link is made. KernelError."""

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """Give that back, after the last was put or discarded."""

    def make(self, trampoline: "BpfTrampoline", flags: TrampFlag) -> SiteImage:
        """An image for the programs of a trampoline as they are now. KernelError, DisplacementError."""
        ...

    def write(self) -> None:
        """Images that were made are about to be reached: write what ``make`` put off."""

    def time_programs(self, enabled: bool) -> bool:
        """Run-time statistics come or go; whether images must be made anew for that."""
        ...

    def is_outdated(self, before: TrampFlag, flags: TrampFlag) -> bool:
        """Whether an image made with the flags ``before`` must be made anew because livepatch came or went
        (SHARE_IPMODIFY in ``flags``).
        """
        ...
