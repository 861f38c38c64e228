"""What happened: one typed stream, read by debuggers, exporters, invariants and error reports.

Addresses are guest addresses, sizes bytes, times virtual nanoseconds.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""


class PokePhase(enum.IntEnum):
    """The three writes of a text patch (``text_poke_bp_batch`` in arch/x86/kernel/alternative.c)."""

    INT3 = 1
    TAIL = 2
    FIRST_BYTE = 3


@dataclass(frozen=True, slots=True)
class TextPatched(Event):
    """One write of a patch."""

    phase: PokePhase
    address: int
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class CpuSerialized(Event):
    """A vCPU executed a serialising instruction and sees all text as it is."""

    vcpu: int


@dataclass(frozen=True, slots=True)
class TrapTaken(Event):
    """A vCPU hit the int3 of a patch under way; ``rip`` is where the new instruction took it."""

    vcpu: int
    site: int
    rip: int


@dataclass(frozen=True, slots=True)
class GracePeriodBegun(Event):
    """A grace period began; it waits for ``holdouts`` tasks."""

    flavour: str
    number: int
    holdouts: int


@dataclass(frozen=True, slots=True)
class GracePeriodOver(Event):
    """All readers that the grace period had to wait for have passed."""

    flavour: str
    number: int


@dataclass(frozen=True, slots=True)
class ImageMade(Event):
    """Executable memory was allocated and filled."""

    address: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class ImageFreed(Event):
    """Executable memory was freed and poisoned."""

    address: int
    size: int
    name: str


class EventStream:
    """Events in order. ``subscribe`` is called with every later one."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._readers: list[Callable[[Event], None]] = []

    def emit(self, event: Event) -> None:
        """Record an event and tell the readers."""
        self._events.append(event)
        for reader in self._readers:
            reader(event)

    def subscribe(self, reader: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``reader`` with every event from now on; what is returned ends that."""
        self._readers.append(reader)
        return lambda: self._readers.remove(reader)

    def clear(self) -> None:
        """Forget what happened so far."""
        self._events.clear()

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)
