"""Results of a debugger's views: code, calls and vCPUs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emu.threads.thread import Thread


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One instruction as the current thread's vCPU would fetch it. ``patch``: state of a patch of its bytes."""

    address: int
    code: bytes
    text: str
    comment: str
    phase: str | None
    symbol: str
    """The function or image, and the offset there: ``vfs_read+0x5``."""
    patch: str = ""
    ebpf: str = ""
    """The eBPF instruction that it was compiled from, with its number."""
    source: str = ""
    """The line of that program's source."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """One function of a call chain. ``frame``: the address after its return address on the stack."""

    address: int
    name: str
    frame: int | None
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class PatchedBytes:
    """Bytes of text that a vCPU may still see unpatched. ``sees_new``: it was made to see the new ones."""

    address: int
    old: bytes
    new: bytes
    sees_new: bool


@dataclass(frozen=True, slots=True)
class CpuState:
    """A vCPU: its thread (None: idle), position, and the text that it has not adopted."""

    index: int
    thread: "Thread | None"
    rip: int
    pending: tuple[PatchedBytes, ...]

    @property
    def has_serialized(self) -> bool:
        """True if it sees all text as it is in memory."""
        return not self.pending
