"""Interface between a trampoline and the source of its images, which differs between designs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from trampoline.bpf.prog import BpfProg
from trampoline.image.generator import TrampFlag
from trampoline.update.target import LinkEntry, TraceTarget

if TYPE_CHECKING:
    from trampoline.update.bpf_trampoline import BpfTrampoline


class SiteImage(Protocol):
    """Image that a site reaches: the trampoline's own, or a shared one."""

    @property
    def image(self) -> int:
        """Guest address."""
        ...

    @property
    def by_jmp(self) -> bool:
        """True if sites jump to it instead of calling it."""
        ...

    def put(self) -> None:
        """Releases the image; CPUs may still be in it."""

    def discard(self) -> None:
        """Releases an image that no site reached."""


class ImageSource(Protocol):
    """Source of the images of trampolines."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Raises KernelError if no image can be made for the program on the target."""

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Allocates what images need besides themselves, before the first image of a link is made. KernelError."""

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """Frees the data of ``hold``, after the last image was put or discarded."""

    def make(self, trampoline: "BpfTrampoline", flags: TrampFlag) -> SiteImage:
        """Makes an image for the present programs of a trampoline. KernelError, DisplacementError."""
        ...

    def write(self) -> None:
        """Writes code that ``make`` deferred, before sites reach the images."""

    def time_programs(self, enabled: bool) -> bool:
        """Turns run-time statistics on or off; True if images must be rebuilt for that."""
        ...

    def is_outdated(self, before: TrampFlag, flags: TrampFlag) -> bool:
        """True if an image made with the flags ``before`` must be rebuilt because livepatch was enabled or disabled
        (SHARE_IPMODIFY in ``flags``).
        """
        ...
