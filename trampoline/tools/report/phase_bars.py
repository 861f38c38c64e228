"""Instructions by phase, as bars and as a table, several columns side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from emu.counting.counts import OTHER
from trampoline.tools.icount.capture import PHASES

_MEANING = {
    "entry": "entry: endbr64, frame, thunks",
    "save": "arguments and registers to the frame",
    "lookup": "finding the function's metadata",
    "enter": "before a program: recursion guard, migrate_disable, run context",
    "program": "the program and its call",
    "exit": "after a program",
    "origin": "calling the traced function, and guarding the image meanwhile",
    "restore": "registers from the frame",
    "leave": "return",
    OTHER: "the traced function itself, and code without a phase",
}


@dataclass(frozen=True, slots=True)
class Column:
    """Costs of a call in one design, or from a baseline.

    Unknown values: ``by_phase`` is empty, ``unbalanced_returns`` is None.
    """

    label: str
    instructions: int
    unbalanced_returns: int | None
    by_phase: Mapping[str, int]


def legend(phases: Iterable[str]) -> str:
    """Legend of the colours."""
    items = [
        f'<li title="{escape(_MEANING[phase])}"><span class="chip b-{phase}"></span>{phase}</li>' for phase in phases
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def strip(by_phase: Mapping[str, int], whole: int, widest: int) -> str:
    """A bar of phases, in proportion ``whole`` to ``widest``."""
    pieces = []
    for phase in PHASES:
        if count := by_phase.get(phase, 0):
            label = phase if count / widest > 0.09 else ""
            pieces.append(
                f'<span class="b-{phase}" style="flex: {count} 0 0" title="{phase}: {count}">{label}</span>'
            )
    if not pieces:
        pieces.append('<span class="b-other" style="flex: 1 0 0"></span>')
    return f'<div class="strip" style="width: {100 * whole / widest:.2f}%" aria-hidden="true">{"".join(pieces)}</div>'


def difference(value: int, reference: int) -> str:
    """Difference from the reference with its sign; empty if there is none."""
    if value == reference:
        return ""
    return f'<span class="delta {"more" if value > reference else "less"}">{value - reference:+d}</span>'


def takes(columns: Sequence[Column]) -> str:
    """Costs of a call by phase: bars on one scale, and the numbers with their differences from the first column."""
    widest = max(column.instructions for column in columns)
    first = columns[0]
    phases = [phase for phase in PHASES if any(column.by_phase.get(phase) for column in columns)]
    parts = ['<div class="card">']
    for column in columns:
        parts.append(
            f'<div class="row-label"><b>{escape(column.label)}</b><span>{column.instructions} instructions'
            f"{difference(column.instructions, first.instructions)}</span></div>"
        )
        parts.append(strip(column.by_phase, column.instructions, widest))
    parts += [legend(phases), '<div class="scroll"><table class="numbers">', "<thead><tr><th>phase</th>"]
    parts += [f'<th class="n">{escape(column.label)}</th>' for column in columns]
    parts.append('<th class="which">which is</th></tr></thead><tbody>')
    for phase in phases:
        parts.append(f'<tr><th><span class="chip b-{phase}"></span>{phase}</th>')
        parts += [_phase_number(column, first, phase) for column in columns]
        parts.append(f'<td class="soft which">{escape(_MEANING[phase])}</td></tr>')
    parts.append('<tr class="sum"><th>all</th>')
    parts += [_number(column.instructions, first.instructions) for column in columns]
    parts.append('<td class="which"></td></tr><tr><th>unbalanced returns</th>')
    parts += [_number(column.unbalanced_returns, first.unbalanced_returns) for column in columns]
    parts.append('<td class="soft which">returns that a CPU mispredicts</td></tr></tbody></table></div></div>')
    return "\n".join(parts)


def _phase_number(column: Column, first: Column, phase: str) -> str:
    here = column.by_phase.get(phase, 0) if column.by_phase else None
    return _number(here, first.by_phase.get(phase, 0) if first.by_phase else None)


def _number(value: int | None, reference: int | None) -> str:
    if value is None:
        return '<td class="n soft">?</td>'
    return f'<td class="n">{value}{difference(value, value if reference is None else reference)}</td>'
