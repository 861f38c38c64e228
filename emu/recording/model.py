"""A recording: the tree of what was reached from where, and the line of time on which it was entered and left."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from emu.counting.counts import InstructionCounts, aggregate
from emu.events import Event


class NodeKind(enum.StrEnum):
    """What a node of the tree is."""

    ROOT = "root"
    """Where nothing has been called yet; it executes nothing."""
    TASK = "task"
    """A kernel thread. Calls from outside, which run on a CPU's own task, have none above them."""
    FUNCTION = "function"
    PHASE = "phase"
    """A stretch of a function whose instructions serve one phase, with what is called from there."""


@dataclass(frozen=True, slots=True)
class ExecutedInsn:
    """An instruction as it was executed: its bytes at ``address``, its text, and to what it belongs.

    ``image`` is the address at which its image begins, ``function`` where none is known ``emu.counting.counts.OTHER``.
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
    """A function, a phase or a task, as it was reached on one path.

    ``entry`` is the address of its first instruction, ``site`` of the one that called it or jumped there, 0 for a call
    from outside. ``calls`` is how often it was entered. ``counts`` has the executions of each instruction in the node
    itself, without those of its children.
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
        """Its name in a picture: phases in brackets."""
        return f"[{self.name}]" if self.kind is NodeKind.PHASE else self.name

    @property
    def function(self) -> "CallNode":
        """The node itself, or the function that a phase is a part of."""
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
        """Instructions executed in it and below."""
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
        """It and all nodes below, each before its children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


class TreeChange(NamedTuple):
    """A node was entered, or left.

    ``position``: instructions that all vCPUs had executed before; ``own``: that this one had. A task that gives its CPU
    away leaves all its nodes, and enters them again where it goes on.
    """

    position: int
    own: int
    cpu: int
    node: CallNode
    enters: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """An event and when it happened. ``cpu`` is the vCPU that ran then, None for process context."""

    position: int
    own: int
    cpu: int | None
    event: Event


@dataclass(eq=False, slots=True)
class Recording:
    """What happened while a block ran; complete once the block is left.

    ``changes`` and ``marks`` are in order of their positions; on each vCPU, what is entered is left, innermost first.
    """

    cpus: int
    root: CallNode = field(default_factory=lambda: CallNode(NodeKind.ROOT, "", 0, 0, None))
    changes: list[TreeChange] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    places: dict[int, ExecutedInsn] = field(default_factory=dict)
    """What stood at each address that was executed; where it was patched meanwhile, what was executed last."""
    executed: list[int] = field(default_factory=list)
    """Instructions, by vCPU."""
    unbalanced_returns: int = 0
    """Of the vCPUs together, as their counters have it."""

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
        """The same as a call's counts, for all vCPUs."""
        places = self.places
        return aggregate(
            self.by_address,
            self.unbalanced_returns,
            lambda address: places[address].phase,
            lambda address: places[address].function,
        )


@dataclass(frozen=True)
class NodeTotals:
    """The totals of all nodes of a tree, worked out at once."""

    root: CallNode

    @cached_property
    def _totals(self) -> dict[CallNode, int]:
        totals: dict[CallNode, int] = {}
        for node in reversed(list(self.root.walk())):
            totals[node] = node.own + sum(totals[child] for child in node.children)
        return totals

    def __getitem__(self, node: CallNode) -> int:
        return self._totals[node]
