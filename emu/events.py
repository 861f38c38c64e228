"""What happened: one typed stream, read by debuggers, exporters, invariants and error reports.

Addresses are guest addresses, sizes bytes, times virtual nanoseconds.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol


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


@dataclass(eq=False, slots=True)
class TextPatches:
    """As many TextPatched of one phase, made when somebody reads them."""

    phase: PokePhase
    addresses: Sequence[int]
    old: Sequence[bytes]
    new: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.addresses)

    def __iter__(self) -> Iterator[TextPatched]:
        return map(TextPatched, repeat(self.phase), self.addresses, self.old, self.new)


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


class Events(Protocol):
    """Events that happened together, in order. Each reading may make them anew."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Event]: ...


class EventStream:
    """Events in order. ``subscribe`` is called with every later one."""

    def __init__(self) -> None:
        self._events: list[Event | Events] = []
        self._count = 0
        self._readers: list[Callable[[Event], None]] = []

    @property
    def has_readers(self) -> bool:
        """Whether somebody is told of every event, and may look at the kernel as it is then."""
        return bool(self._readers)

    def emit(self, event: Event) -> None:
        """Record an event and tell the readers."""
        self._events.append(event)
        self._count += 1
        for reader in self._readers:
            reader(event)

    def emit_all(self, events: Events) -> None:
        """Record events and tell the readers. Where there are none, several events are made when they are read."""
        if self._readers or len(events) == 1:
            for event in events:
                self.emit(event)
        else:
            self._events.append(events)
            self._count += len(events)

    def subscribe(self, reader: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``reader`` with every event from now on; what is returned ends that."""
        self._readers.append(reader)
        return lambda: self._readers.remove(reader)

    def clear(self) -> None:
        """Forget what happened so far."""
        self._events.clear()
        self._count = 0

    def __iter__(self) -> Iterator[Event]:
        for entry in self._events:
            if isinstance(entry, Event):
                yield entry
            else:
                yield from entry

    def __len__(self) -> int:
        return self._count
