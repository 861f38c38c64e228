"""Call stacks, computed from the blocks that a task executes and its stack pointer at each.

A frame lives until the stack pointer is above the word of its return address, moved by any instruction: a ``ret``, or a
trampoline that drops the return address into the traced function and returns to that one's caller. So no particular way
of calling or returning has to be known:

- a call instruction, or an int3 whose handler emulates one, makes a frame at the word that it pushed;
- a jump into another function makes a frame in its caller's place, which ends with it: a tail call. It is drawn inside
  the function that jumped. A jump back ends it;
- a ``ret`` to a pushed address that is not its caller's is a jump;
- a function that drops its return address and continues takes its caller's place.
"""

import enum
from dataclasses import dataclass

from emu.recording.model import CallNode, NodeKind
from emu.recording.timeline import Track


class Way(enum.Enum):
    """Way in which the execution reached a block."""

    PLAIN = "plain"
    """Sequentially, or by a jump."""
    CALL = "call"
    RETURN = "return"
    START = "start"
    """The host entered a function: a call from outside, from within a host call, or a new task."""


@dataclass(eq=False, slots=True)
class Segment:
    """Instructions of a block that belong to one function and one phase; ``start`` is the first address.

    ``addresses`` contains only guest instructions, for instance not the hlt of a host call's stub.
    """

    start: int
    function: str
    phase: str | None
    addresses: tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Frame:
    node: CallNode
    base: int
    """Guest address of the word with the return address."""
    inherited: str | None
    """Phase in which it was reached."""
    phase: CallNode | None = None

    @property
    def inner(self) -> CallNode:
        return self.phase or self.node


_NOWHERE = 1 << 64
"""Base of a frame that no ``ret`` can leave."""


class CallStack:
    """The frames of one task. ``track`` is where they are drawn, None while no vCPU runs it."""

    def __init__(self, root: CallNode, task: str | None) -> None:
        self.track: Track | None = None
        self._root = root
        self._frames: list[_Frame] = []
        self._task = task
        self._last = 0
        self._nodes: dict[tuple[CallNode, NodeKind, str, int, int], CallNode] = {}
        self.segments: dict[tuple[CallNode, Segment], int] = {}
        """Complete executions of each segment, by node."""

    def show(self, track: Track | None) -> None:
        """Draw the frames on another track from now on."""
        nodes = [node for frame in self._frames for node in (frame.node, frame.phase) if node is not None]
        if self._frames and self._task is not None:
            nodes.insert(0, self._top_of_task())
        if self.track is not None:
            for node in reversed(nodes):
                self.track.leave(node)
            self.track.stack = None
        self.track = track
        if track is not None:
            track.stack = self
            for node in nodes:
                track.enter(node)

    def execute(self, segments: tuple[Segment, ...], executed: int, rsp: int, way: Way) -> None:
        """Add a block of which ``executed`` instructions were executed, reached by ``way`` with this stack pointer."""
        track = self.track
        assert track is not None
        for number, segment in enumerate(segments):
            if not number:
                self._arrive(segment, rsp, way)
            elif executed <= 0:
                break
            else:
                self._settle(segment, rsp)
            addresses = segment.addresses[:executed]
            if not addresses:
                continue
            frame = self._frames[-1]
            phase = segment.phase if segment.phase != frame.inherited else None
            if phase != (frame.phase.name if frame.phase is not None else None):
                self._set_phase(frame, phase, addresses[0])
            inner = frame.phase or frame.node
            if len(addresses) == len(segment.addresses):
                key = (inner, segment)
                self.segments[key] = self.segments.get(key, 0) + 1
            else:
                for address in addresses:
                    inner.counts[address] = inner.counts.get(address, 0) + 1
            track.advance(len(addresses))
            executed -= len(addresses)
            self._last = addresses[-1]

    def leave_above(self, rsp: int) -> None:
        """Remove frames whose return address is below the stack pointer."""
        while self._frames and self._frames[-1].base < rsp:
            self._pop()

    def close(self) -> None:
        """End all frames."""
        while self._frames:
            self._pop()

    def _arrive(self, segment: Segment, rsp: int, way: Way) -> None:
        if way is Way.START:
            self.leave_above(rsp + 1)
            self._push(segment, rsp, 0)
            return
        frames = self._frames
        if way is Way.CALL:
            self._drop_below(rsp + 8)
            self._push(segment, rsp, self._last)
            return
        if way is Way.PLAIN and frames and frames[-1].node.name == segment.function:
            self._drop_below(rsp)
        else:
            self.leave_above(rsp)
        self._settle(segment, rsp)

    def _drop_below(self, rsp: int) -> None:
        """Keep the innermost frame although the stack pointer is above its return address."""
        if self._frames and self._frames[-1].base < rsp:
            bases = [frame.base for frame in self._frames if frame.base >= rsp]
            self._frames[-1].base = bases[-1] if bases else _NOWHERE

    def _settle(self, segment: Segment, rsp: int) -> None:
        """Make the innermost frame that of the segment's function."""
        frames = self._frames
        if not frames:
            self._push(segment, rsp, 0)
            return
        if frames[-1].node.name == segment.function:
            return
        base = frames[-1].base
        position = len(frames) - 1
        while position >= 0 and frames[position].base == base:
            if frames[position].node.name == segment.function:
                while len(frames) - 1 > position:
                    self._pop()
                return
            position -= 1
        self._push(segment, base, self._last)

    def _push(self, segment: Segment, base: int, site: int) -> None:
        track = self.track
        assert track is not None
        if self._frames:
            above = self._frames[-1]
            parent = above.inner
            inherited = above.phase.name if above.phase is not None else above.inherited
        else:
            parent, inherited = self._root, None
            if self._task is not None:
                parent = self._top_of_task()
                parent.calls += 1
                track.enter(parent)
        node = self._node(parent, NodeKind.FUNCTION, segment.function, segment.start, site)
        node.calls += 1
        self._frames.append(_Frame(node, base, inherited))
        track.enter(node)

    def _pop(self) -> None:
        frame = self._frames.pop()
        track = self.track
        assert track is not None
        if frame.phase is not None:
            track.leave(frame.phase)
        track.leave(frame.node)
        if not self._frames and self._task is not None:
            track.leave(self._top_of_task())

    def _set_phase(self, frame: _Frame, phase: str | None, address: int) -> None:
        track = self.track
        assert track is not None
        if frame.phase is not None:
            track.leave(frame.phase)
        frame.phase = None
        if phase is not None:
            frame.phase = self._node(frame.node, NodeKind.PHASE, phase, address, self._last)
            frame.phase.calls += 1
            track.enter(frame.phase)

    def _top_of_task(self) -> CallNode:
        return self._node(self._root, NodeKind.TASK, self._task or "", 0, 0)

    def _node(self, parent: CallNode, kind: NodeKind, name: str, entry: int, site: int) -> CallNode:
        # A phase is one node however it was reached.
        key = (parent, kind, name, entry, site) if kind is NodeKind.FUNCTION else (parent, kind, name, 0, 0)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = CallNode(kind, name, entry, site, parent)
            parent.children.append(node)
        return node
