"""HTML page of a workload: its calls in several designs, their costs, flame graphs and executed code."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from emu.counting.counts import OTHER
from emu.recording import CallNode
from emu.recording.export.chrome import kind_of
from emu.recording.model import NodeTotals
from trampoline.tools.icount.baseline import BaselineEntry
from trampoline.tools.report.executed_code import CodeRow, ExecutedCode
from trampoline.tools.report.flame import bars, flame
from trampoline.tools.report.html_page import page
from trampoline.tools.report.observed_calls import ObservedCall, ObservedTarget
from trampoline.tools.report.phase_bars import Column, takes
from trampoline.tools.report.stack_drawing import drawn


def calls_page(variants: Sequence[ObservedTarget], baseline: Mapping[str, BaselineEntry] | None = None) -> str:
    """Page of a target: each call in every design that accepted it, with its baseline. At least one design must
    have.
    """
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
        columns = [*_known(baseline or {}, call, first), *(_column(label, one) for label, one in these)]
        sections += [takes(columns), _flames(these)]
        for one, (label, observed) in zip(made, these, strict=True):
            heading = f"<h3>{escape(label)}</h3>" if len(made) > 1 else ""
            sections += [heading, _attached(one), _chain(observed), _stack(observed), *map(_listing, observed.code)]
        sections.append("</section>")
    return page(first.title, subtitle, sections)


def _column(label: str, call: ObservedCall) -> Column:
    counts = call.counts
    return Column(label, counts.instructions, counts.unbalanced_returns, counts.by_phase)


def _known(baseline: Mapping[str, BaselineEntry], call: ObservedCall, observed: ObservedTarget) -> Iterator[Column]:
    """The baseline's column for a call, with the conditions if they are of another kernel or design."""
    entry = baseline.get(call.name)
    if entry is None:
        return
    if entry.path is None:
        yield Column("baseline", entry.instructions, None, {})
        return
    now = {"design": observed.design, "flavour": observed.flavour, "config": observed.config}
    conditions = entry.path.conditions
    other = ", ".join(conditions[key] for key, value in now.items() if conditions.get(key, value) != value)
    phases = {name: phase.instructions for name, phase in entry.path.phases.items()}
    # The count lines take precedence: a header that contradicts them is ignored.
    agrees = sum(phases.values()) == entry.instructions
    label = f"baseline ({other})" if other else "baseline"
    yield Column(label, entry.instructions, entry.path.unbalanced_returns, phases if agrees else {})


def _labels(variants: Sequence[ObservedTarget]) -> dict[ObservedTarget, str]:
    """Labels that distinguish the variants: designs, kernels, or both."""
    designs, kernels = {one.design for one in variants}, {one.flavour for one in variants}
    if len(kernels) == 1:
        return {one: one.design for one in variants}
    return {one: f"kernel {one.flavour}" if len(designs) == 1 else f"{one.design}, {one.flavour}" for one in variants}


def _refusals(refused: Sequence[tuple[str, str]]) -> str:
    if not refused:
        return ""
    said = "; ".join(f"{label}: {error}" for label, error in refused)
    return f'<p class="card">Refused: {escape(said)}</p>'


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


def _attached(one: ObservedTarget) -> str:
    """Attached programs, and kernel events while they were attached."""
    kinds = Counter(kind_of(mark.event) for mark in one.recording.marks)
    events = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
    said = [f"attached: {'; '.join(one.attached)}"] if one.attached else []
    said += [f"events: {events}"] if events else []
    return "".join(f'<p class="soft">{escape(line)}</p>' for line in said)


def _chain(call: ObservedCall) -> str:
    root = call.recording.root
    return _folded(
        "Call chain",
        "instructions: below it, its own",
        f'<div class="inside">{_tree(root.children, NodeTotals(root), "chain")}</div>',
    )


def _stack(call: ObservedCall) -> str:
    if not call.stack:
        return ""
    inside = f'<div class="inside">{drawn(call.stack)}</div>'
    return _folded("Stack", "at the entry of the first program", inside, is_open=True)


def _tree(nodes: Sequence[CallNode], totals: NodeTotals, name: str = "") -> str:
    items = []
    for node in nodes:
        times = f" ×{node.calls}" if node.calls > 1 else ""
        below = _tree(node.children, totals) if node.children else ""
        items.append(
            f'<li><div><code>{escape(node.label)}{times}</code><span class="n">{totals[node]}, {node.own}</span></div>'
            f"{below}</li>"
        )
    return f"<ul{f' class={chr(34)}{name}{chr(34)}' if name else ''}>{''.join(items)}</ul>"


def _listing(code: ExecutedCode) -> str:
    rows: list[str] = []
    before: CodeRow | None = None
    for row in code.rows:
        rows.append(_row(row, before))
        before = row
    what = f"{code.executed} instructions, {code.size} bytes at {code.address:#x}"
    table = (
        '<div class="inside flush scroll"><table class="listing"><thead class="soft"><tr><th class="n">count</th>'
        f"<th></th><th></th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return _folded(f"<code>{escape(code.name)}</code>", what, table, is_open=code.is_trampoline)


def _row(row: CodeRow, before: CodeRow | None) -> str:
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
