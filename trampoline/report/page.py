"""The page: one HTML file with everything in it, for a screen or a phone, without network."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from asm import Phase
from emu.counts import OTHER
from emu.recording import Node
from emu.recording.model import Totals
from trampoline.report.code import Code, Row
from trampoline.report.flame import bars, flame, phase_class
from trampoline.report.observe import Observed, ObservedCall
from trampoline.report.stack import drawn

PHASES = (*(phase.value for phase in Phase), OTHER)
"""In the order in which they come."""
_MEANING = {
    "entry": "the way in: endbr64, frame, thunks",
    "save": "arguments and registers to the frame",
    "lookup": "finding the function's metadata",
    "enter": "before a program: recursion guard, migrate_disable, run context",
    "program": "the program and its call",
    "exit": "after a program",
    "origin": "calling the traced function, and guarding the image meanwhile",
    "restore": "registers back",
    "leave": "the way out",
    OTHER: "the traced function itself, and whatever has no phase",
}


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """A whole page of sections that are HTML already; the titles are text."""
    files = resources.files("trampoline.report")
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="tramplab">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="soft">{escape(subtitle)}</p>',
            *sections,
            "</main>",
            f"<script>\n{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def calls_page(variants: Sequence[Observed]) -> str:
    """The page of a target: each call in every design that took it. At least one did."""
    first = variants[0]
    kernels = ", ".join(dict.fromkeys(one.flavour for one in variants))
    made = [one for one in variants if one.error is None]
    labels = _labels(variants)
    subtitle = f"kernel {kernels}, {first.config}; every figure is in instructions, and exact"
    sections = [_refusals([(labels[one], one.error) for one in variants if one.error is not None])]
    for number, call in enumerate(first.calls):
        these = [(labels[one], one.calls[number]) for one in made]
        value = "" if call.value is None else f" = {call.value}"
        sections.append(f"<section>\n<h2><code>{escape(call.text + value)}</code></h2>")
        sections += [takes(these), _flames(these)]
        for one, (label, observed) in zip(made, these, strict=True):
            heading = f"<h3>{escape(label)}</h3>" if len(made) > 1 else ""
            sections += [heading, _attached(one), _chain(observed), _stack(observed), *map(_listing, observed.code)]
        sections.append("</section>")
    return page(first.title, subtitle, sections)


def legend(phases: Iterable[str]) -> str:
    """What the colours mean."""
    items = [
        f'<li title="{escape(_MEANING[phase])}"><span class="chip b-{phase}"></span>{phase}</li>' for phase in phases
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def strip(by_phase: dict[str, int], whole: int, widest: int) -> str:
    """A bar of phases, as wide as ``whole`` is of ``widest``."""
    pieces = []
    for phase in PHASES:
        if count := by_phase.get(phase, 0):
            label = phase if count / widest > 0.09 else ""
            pieces.append(
                f'<span class="b-{phase}" style="flex: {count} 0 0" title="{phase}: {count}">{label}</span>'
            )
    return f'<div class="strip" style="width: {100 * whole / widest:.2f}%" aria-hidden="true">{"".join(pieces)}</div>'


def difference(value: int, reference: int) -> str:
    """How much more or less than the reference, or nothing."""
    if value == reference:
        return ""
    return f'<span class="delta {"more" if value > reference else "less"}">{value - reference:+d}</span>'


def _labels(variants: Sequence[Observed]) -> dict[Observed, str]:
    """What tells the variants apart: designs, kernels, or both."""
    designs, kernels = {one.design for one in variants}, {one.flavour for one in variants}
    if len(kernels) == 1:
        return {one: one.design for one in variants}
    return {one: f"kernel {one.flavour}" if len(designs) == 1 else f"{one.design}, {one.flavour}" for one in variants}


def _refusals(refused: Sequence[tuple[str, str]]) -> str:
    if not refused:
        return ""
    said = "; ".join(f"{label}: {error}" for label, error in refused)
    return f'<p class="card">Refused: {escape(said)}</p>'


def takes(these: Sequence[tuple[str, ObservedCall]]) -> str:
    """What a call takes, by phase: bars on one scale, and the numbers."""
    widest = max(call.counts.instructions for _, call in these)
    reference = these[0][1].counts
    phases = [phase for phase in PHASES if any(call.counts.by_phase.get(phase) for _, call in these)]
    parts = ['<div class="card">']
    for label, call in these:
        counts = call.counts
        parts.append(
            f'<div class="row-label"><b>{escape(label)}</b><span>{counts.instructions} instructions'
            f"{difference(counts.instructions, reference.instructions)}</span></div>"
        )
        parts.append(strip(counts.by_phase, counts.instructions, widest))
    parts += [legend(phases), '<div class="scroll"><table class="numbers">', "<thead><tr><th>phase</th>"]
    parts += [f'<th class="n">{escape(label)}</th>' for label, _ in these]
    parts.append('<th class="which">which is</th></tr></thead><tbody>')
    for phase in phases:
        parts.append(f'<tr><th><span class="chip b-{phase}"></span>{phase}</th>')
        parts += [_number(call.counts.by_phase.get(phase, 0), reference.by_phase.get(phase, 0)) for _, call in these]
        parts.append(f'<td class="soft which">{escape(_MEANING[phase])}</td></tr>')
    parts.append('<tr class="sum"><th>all</th>')
    parts += [_number(call.counts.instructions, reference.instructions) for _, call in these]
    parts.append('<td class="which"></td></tr><tr><th>unbalanced returns</th>')
    parts += [_number(call.counts.unbalanced_returns, reference.unbalanced_returns) for _, call in these]
    parts.append('<td class="soft which">returns that a CPU mispredicts</td></tr></tbody></table></div></div>')
    return "\n".join(parts)


def _number(value: int, reference: int) -> str:
    return f'<td class="n">{value}{difference(value, reference)}</td>'


def _flames(these: Sequence[tuple[str, ObservedCall]]) -> str:
    widest = max(call.counts.instructions for _, call in these)
    parts = [
        '<div class="card">',
        '<p class="soft">A bar is as wide as the instructions executed in it and below it, in the colour of its phase;'
        " all are on one scale. Choose one to see it alone.</p>",
    ]
    for label, call in these:
        parts += [
            '<figure class="zoom">',
            f"<figcaption>{escape(label)}</figcaption>",
            flame(bars(call.recording.root.children), widest, label),
            "</figure>",
        ]
    return "\n".join([*parts, "</div>"])


def _attached(one: Observed) -> str:
    return f'<p class="soft">attached: {escape("; ".join(one.attached))}</p>' if one.attached else ""


def _chain(call: ObservedCall) -> str:
    root = call.recording.root
    return _folded(
        "Call chain",
        "instructions: below it, its own",
        f'<div class="inside">{_tree(root.children, Totals(root), "chain")}</div>',
    )


def _stack(call: ObservedCall) -> str:
    if not call.stack:
        return ""
    inside = f'<div class="inside">{drawn(call.stack)}</div>'
    return _folded("Stack", "when the first program has just been entered", inside, is_open=True)


def _tree(nodes: Sequence[Node], totals: Totals, name: str = "") -> str:
    items = []
    for node in nodes:
        times = f" ×{node.calls}" if node.calls > 1 else ""
        below = _tree(node.children, totals) if node.children else ""
        items.append(
            f'<li><div><code>{escape(node.label)}{times}</code><span class="n">{totals[node]}, {node.own}</span></div>'
            f"{below}</li>"
        )
    return f"<ul{f' class={chr(34)}{name}{chr(34)}' if name else ''}>{''.join(items)}</ul>"


def _listing(code: Code) -> str:
    rows: list[str] = []
    before: Row | None = None
    for row in code.rows:
        rows.append(_row(row, before))
        before = row
    what = f"{code.executed} instructions, {code.size} bytes at {code.address:#x}"
    table = (
        '<div class="inside flush scroll"><table class="listing"><thead class="soft"><tr><th class="n">count</th>'
        f"<th></th><th></th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return _folded(f"<code>{escape(code.name)}</code>", what, table, is_open=code.is_trampoline)


def _row(row: Row, before: Row | None) -> str:
    label = f'<tr><td class="label" colspan="4"><code>{escape(row.label)}:</code></td></tr>' if row.label else ""
    new = before is None or before.phase != row.phase
    classes = " ".join(name for name, wanted in (("idle", not row.count), ("first-of", new)) if wanted)
    note = "; ".join(part for part in (row.target, row.comment) if part)
    return (
        f'{label}<tr{f" class={chr(34)}{classes}{chr(34)}" if classes else ""}>'
        f'<td class="n">{row.count or "·"}</td>'
        f'<td class="ph l-{row.phase or OTHER}">{(row.phase or "") if new else ""}</td>'
        f'<td class="off mono">{row.offset:x}</td>'
        f'<td><code class="asm">{escape(row.text)}</code>'
        f'{f"<span class={chr(34)}note{chr(34)}>{escape(note)}</span>" if note else ""}</td></tr>'
    )


def _folded(what: str, figures: str, inside: str, *, is_open: bool = False) -> str:
    return (
        f'<details{" open" if is_open else ""}><summary><span class="what">{what}</span>'
        f'<span class="soft">{escape(figures)}</span></summary>{inside}</details>'
    )


__all__ = ["PHASES", "calls_page", "difference", "legend", "page", "phase_class", "strip", "takes"]
