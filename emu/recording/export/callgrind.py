"""Callgrind's format, which KCachegrind, QCachegrind and callgrind_annotate read.

"Callgrind Format Specification" of Valgrind's manual, version 1. The one event is ``Ir``, instructions executed.
Positions are guest addresses, and lines of a listing that is written with the profile: the tools show it as source,
with the counts at every instruction. A phase is a function of its own, ``bpf_trampoline_1 [enter]``, called by its
function. A direct or indirect recursive call is to ``name'2``, as with callgrind's option to separate recursions: so
inclusive costs count nothing twice.
"""

from dataclasses import dataclass, field

from emu.recording.model import CallNode, ExecutedInsn, NodeKind, NodeTotals, Recording

CODE_WIDTH = 20
TEXT_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile, and the listing that its lines refer to; ``listing_name`` is that file's name in the profile."""

    text: str
    listing: str
    listing_name: str


@dataclass(slots=True)
class _Function:
    """The lines of one function: own costs by address, calls by the calling instruction and the function called."""

    costs: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[int, str, int], tuple[int, int]] = field(default_factory=dict)
    """Number of calls, and instructions executed in the callee and below."""


def profile(recording: Recording, title: str, listing_name: str) -> Profile:
    """A recording as a profile; ``listing_name`` is the name of the listing's file, without directories."""
    listing, lines = _listing(recording)
    totals = NodeTotals(recording.root)
    functions: dict[str, _Function] = {}
    for node in recording.root.walk():
        if node.kind is NodeKind.ROOT:
            continue
        function = functions.setdefault(_name(node), _Function())
        for address, count in node.counts.items():
            function.costs[address] = function.costs.get(address, 0) + count
        for child in node.children:
            site = (child.entry if child.kind is NodeKind.PHASE else child.site) or child.entry
            key = (site, _name(child), child.entry)
            times, cost = function.calls.get(key, (0, 0))
            function.calls[key] = (times + child.calls, cost + totals[child])
    numbers = {name: number for number, name in enumerate(functions, 1)}
    text = [
        "# callgrind format",
        "version: 1",
        "creator: tramplab",
        f"cmd: {title}",
        "positions: instr line",
        "events: Ir",
        f"summary: {recording.instructions}",
    ]
    named: set[str] = set()

    def reference(name: str) -> str:
        if name in named:
            return f"({numbers[name]})"
        named.add(name)
        return f"({numbers[name]}) {name}"

    for name, function in functions.items():
        text += ["", "fl=(1)" + ("" if named else f" {listing_name}"), f"fn={reference(name)}"]
        text += [f"{address:#x} {lines[address]} {count}" for address, count in sorted(function.costs.items())]
        for (site, callee, entry), (times, cost) in sorted(function.calls.items()):
            text += [f"cfn={reference(callee)}", f"calls={times} {entry:#x} {lines.get(entry, 0)}"]
            text.append(f"{site:#x} {lines.get(site, 0)} {cost}")
    text += ["", f"totals: {recording.instructions}", ""]
    return Profile("\n".join(text), listing, listing_name)


def _name(node: CallNode) -> str:
    function = node.function
    above = function.parent
    while above is not None and (above.kind is not NodeKind.FUNCTION or above.name != function.name):
        above = above.parent
    name = function.name if above is None else f"{function.name}'2"
    return f"{name} {node.label}" if node.kind is NodeKind.PHASE else name


def _listing(recording: Recording) -> tuple[str, dict[int, int]]:
    """All executed instructions by function, and the line number of each, from 1."""
    text: list[str] = []
    lines: dict[int, int] = {}
    last: ExecutedInsn | None = None
    for address, place in sorted(recording.places.items()):
        if last is None or last.function != place.function:
            text += [""] * bool(text) + [f"{place.function}:"]
        elif address != last.address + len(last.code):
            text.append("  ...")
        last = place
        code = place.code.hex().ljust(CODE_WIDTH)
        comment = f"  ; {place.comment}" if place.comment else ""
        text.append(f"  {code}  {place.phase or '':8}{place.text:{TEXT_WIDTH}}{comment}".rstrip())
        lines[address] = len(text)
    return "\n".join(text) + "\n", lines
