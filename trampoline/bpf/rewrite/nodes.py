"""A program as a list of nodes whose jumps refer to their targets, so that instructions can be inserted and removed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trampoline.bpf.isa.insn import GOTOL, Insn, places
from trampoline.bpf.rewrite.errors import RewriteError
from trampoline.bpf.verifier.state.result import InsnFacts, Verified


@dataclass(eq=False, slots=True)
class InsnNode:
    """One instruction. ``target``: its jump target; ``func``: number of the function that it calls or points to."""

    insn: Insn
    target: "InsnNode | None" = None
    func: int | None = None
    facts: InsnFacts | None = None
    """Verification's facts on it; None for instructions added by rewriting."""
    origin: int | None = None
    """Its slot in the loaded program."""


class NodeList:
    """The whole program: ``nodes`` in order, ``starts`` the first node of each function.

    ``numbers``: number of each function in the loaded program; None for functions added by rewriting.
    """

    def __init__(self, verified: Verified) -> None:
        insns = verified.program.insns
        slots = places(insns)
        at = dict(zip(slots, range(len(insns)), strict=False))
        number_at = {subprog.start: number for number, subprog in enumerate(verified.subprogs)}
        self.nodes = [
            InsnNode(insn, facts=facts, origin=slot)
            for insn, facts, slot in zip(insns, verified.insns, slots, strict=False)
        ]
        self.starts: list[InsnNode] = [self.nodes[at[subprog.start]] for subprog in verified.subprogs]
        self.numbers: list[int | None] = list(range(len(self.starts)))
        for node, slot in zip(self.nodes, slots, strict=False):
            if (distance := node.insn.jump) is not None:
                node.target = self.nodes[at[slot + 1 + distance]]
            elif (distance := node.insn.function) is not None:
                node.func = number_at[slot + 1 + distance]

    def expand(self, make: Callable[[InsnNode], Sequence[Insn | InsnNode] | None]) -> None:
        """Replace each node by the result of ``make``; None keeps it, an empty result removes it.

        Jumps to a node lead to the first node of its replacement. Jumps of new instructions are relative within their
        replacement, including its end; new nodes keep their targets.
        """
        out: list[InsnNode] = []
        heads: list[int] = []
        inner: list[tuple[InsnNode, int]] = []
        for node in self.nodes:
            heads.append(len(out))
            new = make(node)
            if new is None:
                out.append(node)
                continue
            for item in new:
                made = item if isinstance(item, InsnNode) else InsnNode(item)
                if isinstance(item, Insn) and (distance := item.jump) is not None:
                    inner.append((made, len(out) + 1 + distance))
                out.append(made)
        index = {id(node): number for number, node in enumerate(self.nodes)}
        for node in out:
            if node.target is not None and id(node.target) in index:
                node.target = _at(out, heads[index[id(node.target)]])
        for node, place in inner:
            node.target = _at(out, place)
        ends = [*(index[id(start)] for start in self.starts[1:]), len(self.nodes)]
        kept = [
            (heads[index[id(start)]], heads[end] if end < len(heads) else len(out))
            for start, end in zip(self.starts, ends, strict=True)
        ]
        self._keep([start for start, end in kept], [start < end for start, end in kept], out)
        self.nodes = out

    def _keep(self, firsts: list[int], alive: list[bool], out: list[InsnNode]) -> None:
        """Keep the functions that still have nodes, and renumber calls."""
        left = [number for number, lives in enumerate(alive) if lives]
        if len(left) < len(alive):
            new_number = {number: place for place, number in enumerate(left)}
            for node in out:
                if node.func is not None:
                    node.func = new_number[node.func]
        self.starts = [out[firsts[number]] for number in left]
        self.numbers = [self.numbers[number] for number in left]

    def begin_with(self, number: int, insns: Iterable[Insn]) -> None:
        """Insert instructions at a function's start; jumps to its old first instruction skip them."""
        place = self.nodes.index(self.starts[number])
        new = [InsnNode(insn) for insn in insns]
        self.nodes[place:place] = new
        self.starts[number] = new[0]

    def append_function(self, insns: Iterable[Insn]) -> None:
        """Add a function."""
        new = [InsnNode(insn) for insn in insns]
        self.nodes += new
        self.starts.append(new[0])
        self.numbers.append(None)

    def function_of(self) -> dict[int, int]:
        """Number of each node's function, by the node's ``id()``."""
        starts = {id(start): number for number, start in enumerate(self.starts)}
        found, number = {}, 0
        for node in self.nodes:
            number = starts.get(id(node), number)
            found[id(node)] = number
        return found

    def functions(self) -> list[list[InsnNode]]:
        """The nodes of each function."""
        functions: list[list[InsnNode]] = [[] for _ in self.starts]
        number_of = self.function_of()
        for node in self.nodes:
            functions[number_of[id(node)]].append(node)
        return functions


def _at(nodes: list[InsnNode], place: int) -> InsnNode:
    if place >= len(nodes):
        raise RewriteError("a jump past the program's end")
    return nodes[place]


def laid_out(nodes: Sequence[InsnNode]) -> tuple[Insn, ...]:
    """The instructions of a function with jump distances filled in. Raises RewriteError for a distance that does not
    fit.
    """
    slot_of: dict[int, int] = {}
    slot = 0
    for node in nodes:
        slot_of[id(node)] = slot
        slot += node.insn.slots
    out = []
    for node in nodes:
        insn = node.insn
        if node.target is not None:
            distance = slot_of[id(node.target)] - slot_of[id(node)] - 1
            if insn.code == GOTOL:
                insn = replace(insn, imm=distance)
            elif -0x8000 <= distance < 0x8000:
                insn = replace(insn, off=distance)
            else:
                raise RewriteError(f"a jump of {distance} instructions does not fit")
        out.append(insn)
    return tuple(out)
