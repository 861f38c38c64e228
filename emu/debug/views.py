"""What a debugger shows of code, calls and vCPUs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emu.threads.thread import Thread


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One instruction as the current thread's vCPU would fetch it. ``patch``: what is being done to its bytes."""

    address: int
    code: bytes
    text: str
    comment: str
    phase: str | None
    symbol: str
    """The function or image, and the offset there: ``vfs_read+0x5``."""
    patch: str = ""
    ebpf: str = ""
    """The eBPF instruction from which it was compiled, with its number."""
    source: str = ""
    """The line of that program's source."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """One function on the way to where a thread is. ``frame``: the address behind its return address on the stack."""

    address: int
    name: str
    frame: int | None
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class PatchedBytes:
    """Bytes of text that a vCPU may still see as they were. ``sees_new``: it was made to see the new ones."""

    address: int
    old: bytes
    new: bytes
    sees_new: bool


@dataclass(frozen=True, slots=True)
class CpuState:
    """A vCPU: whom it runs (None: it is idle), where, and what of the text it has not adopted."""

    index: int
    thread: "Thread | None"
    rip: int
    pending: tuple[PatchedBytes, ...]

    @property
    def has_serialized(self) -> bool:
        """Whether it sees all text as it stands."""
        return not self.pending
