"""Ownership of guest memory in schedules: memory private to process context, and freed memory."""

from bisect import bisect_right, insort
from collections.abc import Callable

from emu.kernel.process_context import PointKind, ProcessContext
from emu.schedule.footprint import Footprint


class ScheduledMemory:
    """Makes a point of every store of a driven operation to published memory.

    Memory that an operation has just allocated is its own until its next store elsewhere, text write or publication:
    until then no pointer leads to it.
    """

    IS_CACHE = True  # a checkpoint leaves it alone: restored by ``World.reset``

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._starts: list[int] = []
        self._freed: dict[int, tuple[int, str]] = {}
        self.owner: str | None = None
        """Letter of the running actor: it owns what it allocates."""
        self.footprint: Footprint | None = None
        """Receives freed ranges, as written."""
        self.on_freed: Callable[[str], None] | None = None
        """Called with the name of freed memory."""
        self._fresh_of: dict[str | None, list[tuple[int, int]]] = {}

    def begin(self) -> None:
        """Start a schedule."""
        self._fresh_of.clear()
        self._freed.clear()
        self._starts.clear()

    @property
    def has_freed(self) -> bool:
        """True if anything was freed since the schedule began."""
        return bool(self._freed)

    def release(self) -> None:
        """Publish what the running actor has allocated."""
        self._fresh_of.pop(self.owner, None)

    def before_store(self, address: int, size: int) -> None:
        """``AddressSpace.before_store``."""
        process = self._process
        if not process.is_driven:
            return
        for start, end in self._fresh_of.get(self.owner, ()):
            if start <= address < end:
                return
        process.point(PointKind.STORE, f"{size} bytes at {address:#x}", (address, size))

    def allocated(self, address: int, size: int) -> None:
        self._fresh_of.setdefault(self.owner, []).append((address, address + size))
        # Memory that is allocated again is no longer freed, even if parts of it had other names.
        for start in [start for start in self._starts if address - self._freed[start][0] < start < address + size]:
            self._starts.remove(start)
            del self._freed[start]

    def freed(self, address: int, size: int, name: str) -> None:
        if self.on_freed is not None:
            self.on_freed(name)
        if self.footprint is not None:
            self.footprint.memory(address, size, writes=True)
        if address not in self._freed:
            insort(self._starts, address)
        self._freed[address] = size, name

    def freed_at(self, address: int) -> str | None:
        """Name of the freed memory at an address; None if it is not freed."""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        start = self._starts[position]
        size, name = self._freed[start]
        return name if address < start + size else None
