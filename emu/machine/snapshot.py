"""Snapshots: the pages that changed since the last one, and the machine's state outside RAM."""

from dataclasses import dataclass, field

from emu.errors import MachineError
from emu.machine.ram import ZERO_PAGE, Ram


@dataclass(eq=False, slots=True)
class Snapshot:
    """A state of a machine. ``pages`` holds the frames that differ from ``parent``'s, or from zeroed RAM."""

    parent: "Snapshot | None"
    lineage: object = field(repr=False)
    pages: dict[int, bytes] = field(repr=False)
    state: object = field(repr=False)

    def page(self, frame: int) -> bytes:
        """A frame's content in this state."""
        snapshot: Snapshot | None = self
        while snapshot is not None:
            content = snapshot.pages.get(frame)
            if content is not None:
                return content
            snapshot = snapshot.parent
        return ZERO_PAGE


class History:
    """Snapshots of one machine, and the one that its RAM is based on."""

    def __init__(self, ram: Ram) -> None:
        self._ram = ram
        self._lineage = object()
        self._base: Snapshot | None = None
        self.pages_copied = 0
        """Pages that the last snapshot or restore copied."""

    def take(self, dirty: set[int], state: object) -> Snapshot:
        """Take a snapshot of the current state; ``dirty``: frames written since the last snapshot or restore."""
        pages = {frame: self._ram.page(frame) for frame in dirty}
        self.pages_copied = len(pages)
        self._base = Snapshot(self._base, self._lineage, pages, state)
        return self._base

    def check(self, snapshot: Snapshot) -> None:
        """Raise MachineError unless the snapshot is of this machine."""
        if snapshot.lineage is not self._lineage:
            raise MachineError("the snapshot is of another machine")

    def restore(self, snapshot: Snapshot, dirty: set[int]) -> set[int]:
        """Bring RAM to a snapshot's content; returns the frames whose content changed."""
        changed = set()
        for frame in self.differing(snapshot, dirty):
            content = snapshot.page(frame)
            if self._ram.page(frame) != content:
                self._ram.set_page(frame, content)
                changed.add(frame)
        self.pages_copied = len(changed)
        self._base = snapshot
        return changed

    def differing(self, snapshot: Snapshot, dirty: set[int]) -> set[int]:
        """Frames that may differ from a snapshot; ``dirty``: frames written since the last snapshot or restore."""
        return dirty | self._between(snapshot)

    def _between(self, target: Snapshot) -> set[int]:
        """Frames that may differ between RAM's base and another snapshot: those on the path via their ancestor."""
        ours, theirs = _ancestry(self._base), _ancestry(target)
        common = set(ours) & set(theirs)
        frames: set[int] = set()
        for snapshot in (*ours, *theirs):
            if snapshot not in common:
                frames.update(snapshot.pages)
        return frames


def _ancestry(snapshot: Snapshot | None) -> list[Snapshot]:
    line = []
    while snapshot is not None:
        line.append(snapshot)
        snapshot = snapshot.parent
    return line
