"""The timeline: instructions of all vCPUs in sequence, and a track for each vCPU."""

from typing import TYPE_CHECKING

from emu.recording.model import CallNode, Recording, TreeChange

if TYPE_CHECKING:
    from emu.recording.callstack import CallStack


class Track:
    """Nodes that one vCPU enters and leaves. ``stack`` is that of its current task."""

    def __init__(self, recording: Recording, cpu: int) -> None:
        self.stack: CallStack | None = None
        self._recording, self._cpu = recording, cpu

    def advance(self, instructions: int) -> None:
        """Add executed instructions."""
        self._recording.executed[self._cpu] += instructions

    def enter(self, node: CallNode) -> None:
        """Enter a node."""
        self._change(node, enters=True)

    def leave(self, node: CallNode) -> None:
        """Leave the innermost node."""
        self._change(node, enters=False)

    def _change(self, node: CallNode, *, enters: bool) -> None:
        recording = self._recording
        own = recording.executed[self._cpu]
        recording.changes.append(TreeChange(recording.instructions, own, self._cpu, node, enters))
