"""The line of time: instructions of all vCPUs, one after the other, and a track for each vCPU."""

from typing import TYPE_CHECKING

from emu.recording.model import CallNode, Recording, TreeChange

if TYPE_CHECKING:
    from emu.recording.callstack import CallStack


class Track:
    """What one vCPU enters and leaves. ``stack`` is that of the task which it runs."""

    def __init__(self, recording: Recording, cpu: int) -> None:
        self.stack: CallStack | None = None
        self._recording, self._cpu = recording, cpu

    def advance(self, instructions: int) -> None:
        """So many instructions were executed."""
        self._recording.executed[self._cpu] += instructions

    def enter(self, node: CallNode) -> None:
        """A node begins."""
        self._change(node, enters=True)

    def leave(self, node: CallNode) -> None:
        """The innermost node ends."""
        self._change(node, enters=False)

    def _change(self, node: CallNode, *, enters: bool) -> None:
        recording = self._recording
        own = recording.executed[self._cpu]
        recording.changes.append(TreeChange(recording.instructions, own, self._cpu, node, enters))
