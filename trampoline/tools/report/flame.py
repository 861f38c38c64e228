"""Flame graph of a call tree: one bar per node, as wide as the instructions executed in it and below it.

The picture is SVG without a view box: bars are placed in per cent of the available width, and text keeps its size on
any screen. A script may zoom (page.js); without it every bar still has its title.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from emu.recording import CallNode, NodeKind
from emu.recording.model import NodeTotals

ROW = 22
"""Height of a row in pixels."""
_BAR = 20
_LABELLED = 0.06
"""Share of the width below which a bar gets its label only from the script, which knows its width."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A node, or several of one name with the same parent. ``first``: its start, in instructions."""

    label: str
    phase: str | None
    depth: int
    first: int
    total: int
    own: int
    calls: int


def bars(roots: Sequence[CallNode]) -> list[Bar]:
    """The bars of some trees, side by side; each precedes those below it."""
    found: list[Bar] = []
    totals = {node: total for root in roots for node, total in _totals(root)}

    def place(nodes: Sequence[CallNode], depth: int, first: int, phase: str | None) -> None:
        by_label: dict[str, list[CallNode]] = {}
        for node in nodes:
            if totals[node]:
                by_label.setdefault(node.label, []).append(node)
        for label, same in by_label.items():
            here = same[0].name if same[0].kind is NodeKind.PHASE else phase
            total = sum(totals[node] for node in same)
            own, calls = sum(node.own for node in same), sum(node.calls for node in same)
            found.append(Bar(label, here, depth, first, total, own, calls))
            place([child for node in same for child in node.children], depth + 1, first, here)
            first += total

    place(roots, 0, 0, None)
    return found


def _totals(root: CallNode) -> list[tuple[CallNode, int]]:
    totals = NodeTotals(root)
    return [(node, totals[node]) for node in root.walk()]


def flame(found: Sequence[Bar], widest: int, name: str) -> str:
    """The picture of some bars; ``widest`` instructions are the whole width, so that pictures share a scale."""
    whole = sum(bar.total for bar in found if bar.depth == 0)
    depth = 1 + max((bar.depth for bar in found), default=0)
    rows = [
        f'<svg class="flame" role="img" aria-label="{escape(name)}: flame graph of {whole} instructions" '
        f'width="100%" height="{depth * ROW}" data-widest="{widest}">'
    ]
    for bar in found:
        share = bar.total / widest
        small = "" if share >= _LABELLED else " small"
        title = f"{bar.label}: {bar.total} instructions ({bar.total / whole:.1%}), {bar.own} of its own"
        title += f", entered {bar.calls} times" if bar.calls != 1 else ""
        rows.append(
            f'<svg class="bar {phase_class(bar.phase)}{small}" x="{_percent(bar.first / widest)}" '
            f'y="{bar.depth * ROW}" width="{_percent(share)}" height="{_BAR}" '
            f'data-at="{bar.first},{bar.total},{bar.depth}"><title>{escape(title)}</title>'
            f'<rect width="100%" height="100%" rx="2"/><text x="4" y="14.5">{escape(bar.label)}</text></svg>'
        )
    rows.append("</svg>")
    return "\n".join(rows)


def phase_class(phase: str | None) -> str:
    """CSS class with the colour of a phase."""
    return f"p-{phase or 'other'}"


def _percent(share: float) -> str:
    return f"{share * 100:.4f}".rstrip("0").rstrip(".") + "%"
