"""Events of the machine and the kernel: one typed stream, for debuggers, exporters, invariants and error reports.

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
    """One write of a text patch."""

    phase: PokePhase
    address: int
    old: bytes
    new: bytes


@dataclass(eq=False, slots=True)
class TextPatches:
    """Several TextPatched events of one phase, built on reading."""

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
    """A vCPU executed a serialising instruction and sees all text as it is in memory."""

    vcpu: int


@dataclass(frozen=True, slots=True)
class TrapTaken(Event):
    """A vCPU hit the int3 of a patch under way; ``rip`` is where the new instruction continues."""

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
    """All readers of the grace period have finished."""

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
    """Events that happened together, in order. Each iteration may build them anew."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Event]: ...


class EventStream:
    """Events in order. ``subscribe`` adds a reader of later ones."""

    def __init__(self) -> None:
        self._events: list[Event | Events] = []
        self._count = 0
        self._readers: list[Callable[[Event], None]] = []

    @property
    def has_readers(self) -> bool:
        """True if a reader is called for every event, and may inspect the kernel's state at that moment."""
        return bool(self._readers)

    def emit(self, event: Event) -> None:
        """Record an event and call the readers."""
        self._events.append(event)
        self._count += 1
        for reader in self._readers:
            reader(event)

    def emit_all(self, events: Events) -> None:
        """Record events and call the readers. Without readers, several events are built when they are iterated."""
        if self._readers or len(events) == 1:
            for event in events:
                self.emit(event)
        else:
            self._events.append(events)
            self._count += len(events)

    def subscribe(self, reader: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``reader`` with every event from now on; returns a function that ends this."""
        self._readers.append(reader)
        return lambda: self._readers.remove(reader)

    def clear(self) -> None:
        """Drop all events so far."""
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
