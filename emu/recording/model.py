"""A recording: the tree of calls and phases, and the timeline of entering and leaving its nodes."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from emu.counting.counts import InstructionCounts, aggregate
from emu.events import Event


class NodeKind(enum.StrEnum):
    """Kind of a tree node."""

    ROOT = "root"
    """The root, above all calls; it executes nothing."""
    TASK = "task"
    """A kernel thread. Calls from outside, which run on a CPU's own task, have none above them."""
    FUNCTION = "function"
    PHASE = "phase"
    """A stretch of a function whose instructions serve one phase, with its callees."""


@dataclass(frozen=True, slots=True)
class ExecutedInsn:
    """An executed instruction: its bytes at ``address``, its text, and its image and function.

    ``image`` is the start address of its image, ``function`` is ``emu.counting.counts.OTHER`` if unknown.
    """

    address: int
    code: bytes
    text: str
    comment: str
    phase: str | None
    function: str
    image: int | None


@dataclass(eq=False, slots=True)
class CallNode:
    """A function, a phase or a task, reached on one path.

    ``entry`` is the address of its first instruction, ``site`` of the one that called it or jumped there, 0 for a call
    from outside. ``calls``: number of entries. ``counts``: executions of each instruction in the node itself, without
    its children.
    """

    kind: NodeKind
    name: str
    entry: int
    site: int
    parent: "CallNode | None"
    children: list["CallNode"] = field(default_factory=list)
    calls: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name in a picture: phases in brackets."""
        return f"[{self.name}]" if self.kind is NodeKind.PHASE else self.name

    @property
    def function(self) -> "CallNode":
        """The node itself, or the function of a phase."""
        node = self
        while node.kind is NodeKind.PHASE and node.parent is not None:
            node = node.parent
        return node

    @property
    def own(self) -> int:
        """Instructions executed in it, without its children."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """Instructions executed in it and its descendants."""
        return sum(node.own for node in self.walk())

    @property
    def path(self) -> tuple["CallNode", ...]:
        """From the outermost node that is not the root to this one."""
        path: list[CallNode] = []
        node: CallNode | None = self
        while node is not None and node.kind is not NodeKind.ROOT:
            path.append(node)
            node = node.parent
        return tuple(reversed(path))

    def walk(self) -> Iterator["CallNode"]:
        """The node and its descendants, each before its children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


class TreeChange(NamedTuple):
    """Entry to, or exit from, a node.

    ``position``: instructions that all vCPUs had executed before; ``own``: those of this vCPU. A task that leaves its
    CPU leaves all its nodes, and enters them again when it resumes.
    """

    position: int
    own: int
    cpu: int
    node: CallNode
    enters: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """An event with its position. ``cpu`` is the vCPU that ran then, None for process context."""

    position: int
    own: int
    cpu: int | None
    event: Event


@dataclass(eq=False, slots=True)
class Recording:
    """The record of a block; complete once the block is left.

    ``changes`` and ``marks`` are in order of their positions; on each vCPU, entries and exits are properly nested.
    """

    cpus: int
    root: CallNode = field(default_factory=lambda: CallNode(NodeKind.ROOT, "", 0, 0, None))
    changes: list[TreeChange] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    places: dict[int, ExecutedInsn] = field(default_factory=dict)
    """Instruction at each executed address; if it was patched meanwhile, the one executed last."""
    executed: list[int] = field(default_factory=list)
    """Number of instructions, by vCPU."""
    unbalanced_returns: int = 0
    """Number of instructions of all vCPUs, by their counters."""

    @property
    def instructions(self) -> int:
        """Instructions executed by all vCPUs. A host call is one, its ``ret``."""
        return sum(self.executed)

    @property
    def by_address(self) -> dict[int, int]:
        """Executions of each instruction."""
        summed: dict[int, int] = {}
        for node in self.root.walk():
            for address, count in node.counts.items():
                summed[address] = summed.get(address, 0) + count
        return summed

    @property
    def counts(self) -> InstructionCounts:
        """The totals of all vCPUs in the form of a call's counts."""
        places = self.places
        return aggregate(
            self.by_address,
            self.unbalanced_returns,
            lambda address: places[address].phase,
            lambda address: places[address].function,
        )


@dataclass(frozen=True)
class NodeTotals:
    """The totals of all nodes of a tree, computed at once."""

    root: CallNode

    @cached_property
    def _totals(self) -> dict[CallNode, int]:
        totals: dict[CallNode, int] = {}
        for node in reversed(list(self.root.walk())):
            totals[node] = node.own + sum(totals[child] for child in node.children)
        return totals

    def __getitem__(self, node: CallNode) -> int:
        return self._totals[node]
