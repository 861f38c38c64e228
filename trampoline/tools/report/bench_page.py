"""HTML page of the bench: each way of attaching in several designs, side by side."""

from collections.abc import Mapping, Sequence
from html import escape

from trampoline.designs import design_info
from trampoline.tools.bench.bench import BenchRow
from trampoline.tools.icount.baseline import BaselineEntry
from trampoline.tools.icount.bench_paths import path_name
from trampoline.tools.icount.capture import PHASES
from trampoline.tools.report.html_page import page
from trampoline.tools.report.phase_bars import difference, legend, strip


def baseline_name(row: BenchRow) -> str:
    """Name of a row in a baseline of ``tramp count``."""
    metadata = row.metadata if design_info(row.design).metadata else None
    return path_name(
        (row.flavour, row.config, row.design), row.name, row.nr_args, row.programs, row.program == "full", metadata
    )


def bench_page(rows: Sequence[BenchRow], baseline: Mapping[str, BaselineEntry] | None = None) -> str:
    """Page of the rows of ``bench.bench``: a table, and the phases of each row in every design, with a baseline."""
    first = rows[0]
    columns = list(dict.fromkeys(_column(row, rows) for row in rows))
    one_kernel = len({row.flavour for row in rows}) == 1
    labels = {
        column: ", ".join([column[0], *([] if one_kernel else [column[1]]), *([column[2]] if column[2] else [])])
        for column in columns
    }
    names = list(dict.fromkeys(row.name for row in rows))
    by_place = {(row.name, _column(row, rows)): row for row in rows}
    programs = f"{first.programs} {first.program} program{'s' * (first.programs != 1)}"
    kernels = ", ".join(dict.fromkeys(row.flavour for row in rows))
    subtitle = (
        f"kernel {kernels}, {first.config}; {first.nr_args} argument{'s' * (first.nr_args != 1)}, {programs}."
        " Exact instructions from the patch site until its return; without the traced function's body and the"
            " programs' own."
    )
    phases = [phase for phase in PHASES if any(row.phases.get(phase) for row in rows)]
    sections = [_table(names, columns, labels, by_place), legend(phases)]
    widest = max(row.instructions or 0 for row in rows)
    for name in names:
        these = [(column, by_place[name, column]) for column in columns if (name, column) in by_place]
        named = [(labels[column] + _way(column, row), row) for column, row in these]
        sections.append(_row(name, named, widest, baseline or {}))
    return page("Cost of an attached program", subtitle, sections)


_Column = tuple[str, str, str | None]
"""Design, kernel, and metadata back end, if the design has rows for several."""


def _column(row: BenchRow, rows: Sequence[BenchRow]) -> _Column:
    of_design = [one.name for one in rows if (one.design, one.flavour) == (row.design, row.flavour)]
    return row.design, row.flavour, row.metadata if len(set(of_design)) < len(of_design) else None


def _way(column: _Column, row: BenchRow) -> str:
    """The metadata back end, if the column does not name it."""
    return f" ({row.metadata})" if row.metadata and not column[2] else ""


def _table(
    names: Sequence[str],
    columns: Sequence[_Column],
    labels: dict[_Column, str],
    by_place: dict[tuple[str, _Column], BenchRow],
) -> str:
    parts = ['<div class="card scroll"><table class="numbers"><thead><tr><th></th>']
    parts += [f'<th class="n">{escape(labels[column])}</th>' for column in columns]
    parts.append("</tr></thead><tbody>")
    for name in names:
        parts.append(f"<tr><th>{escape(name)}</th>")
        reference = by_place.get((name, columns[0]))
        for column in columns:
            parts.append(_cell(by_place.get((name, column)), reference))
        parts.append("</tr>")
    parts.append('</tbody></table><p class="soft">Small figures: difference from the first column.')
    parts.append(" A superscript: returns that a CPU mispredicts.</p></div>")
    return "\n".join(parts)


def _cell(row: BenchRow | None, reference: BenchRow | None) -> str:
    if row is None:
        return '<td class="n soft">·</td>'
    if row.instructions is None:
        return f'<td class="n soft">{escape(row.error or "")}</td>'
    unbalanced = f"<sup>{row.unbalanced_returns}</sup>" if row.unbalanced_returns else ""
    more = difference(row.instructions, reference.instructions) if reference and reference.instructions else ""
    return f'<td class="n">{row.instructions}{unbalanced}{more}</td>'


def _row(name: str, rows: Sequence[tuple[str, BenchRow]], widest: int, baseline: Mapping[str, BaselineEntry]) -> str:
    parts = [f'<section class="card"><h2><code>{escape(name)}</code></h2>']
    reference = rows[0][1].instructions
    for plain, row in rows:
        label = escape(plain)
        if row.instructions is None:
            parts.append(f'<div class="row-label"><b>{label}</b><span>{escape(row.error or "")}</span></div>')
            continue
        more = difference(row.instructions, reference) if reference is not None else ""
        figures = [f"{row.instructions}{more}"]
        entry = baseline.get(baseline_name(row))
        if entry is not None:
            figures.append(f"baseline {entry.instructions}{difference(row.instructions, entry.instructions)}")
        if row.anchor is not None:
            figures.append(f"measured {row.anchor}")
        if row.further is not None:
            figures.append(f"each further program {row.further}")
        parts.append(f'<div class="row-label"><b>{label}</b><span>{" · ".join(figures)}</span></div>')
        parts.append(strip(row.phases, row.instructions, widest))
    parts.append("</section>")
    return "\n".join(parts)
