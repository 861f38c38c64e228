"""Footprint of a schedule's step, and the dependence of two steps on each other."""

from dataclasses import dataclass, field

Place = tuple[str, int | str]
EVERYTHING: Place = ("memory", "all")
"""Read by operations of process context, which read more than is recorded: conflicts with any store of a CPU."""


@dataclass(slots=True)
class Footprint:
    """Places read and written: ("memory", word), ("text", byte), ("lock", name), ("cpu", number), ("rcu", "")."""

    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)

    def memory(self, address: int, size: int, *, writes: bool) -> None:
        """Add a range of guest memory, in words of eight bytes."""
        places = {("memory", word) for word in range(address >> 3, (address + max(size, 1) - 1 >> 3) + 1)}
        (self.writes if writes else self.reads).update(places)
        if writes:
            self.writes.add(EVERYTHING)

    def text(self, address: int, size: int, *, writes: bool) -> None:
        """Add a range of text."""
        (self.writes if writes else self.reads).update(("text", byte) for byte in range(address, address + size))

    def code(self, start: int, end: int, *, writes: bool) -> None:
        """Add code that is executed, placed or removed, in pieces of 64 bytes."""
        pieces = range(start >> 6, (end - 1 >> 6) + 1)
        (self.writes if writes else self.reads).update(("code", piece) for piece in pieces)

    def depends(self, other: "Footprint") -> bool:
        """True if the order of the two matters: both touch a place and at least one writes it."""
        if (self.writes - _SHARED) & (other.writes - _SHARED):
            return True
        return bool(self.writes & other.reads or self.reads & other.writes)


_SHARED = frozenset({EVERYTHING})
"""Written by every store; two stores conflict by their words only."""
