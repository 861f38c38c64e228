"""A schedule as a table: a line per event, a column per actor, and a mark at the broken invariant."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from emu.schedule.run import ScheduleOutcome, Taken
from emu.schedule.simulation import World

BROKEN = "<<<"
"""Mark of the step at which the invariant broke."""


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """One event: the number of its step, the column of its actor, its text."""

    step: int
    column: int
    text: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """A schedule as lines."""

    columns: tuple[str, ...]
    lines: tuple[ScheduleLine, ...]
    verdict: str

    def shortened(self, most: int = 12) -> "ScheduleReport":
        """The report without the middle of long runs of one actor."""
        kept: list[ScheduleLine] = []
        for _, group in groupby(self.lines, key=lambda line: line.column):
            stretch = list(group)
            if len(stretch) > most:
                half = most // 2
                left_out = len(stretch) - 2 * half
                middle = ScheduleLine(stretch[half].step, stretch[0].column, f"... {left_out} more steps")
                stretch = [*stretch[:half], middle, *stretch[-half:]]
            kept += stretch
        return ScheduleReport(self.columns, tuple(kept), self.verdict)

    def text(self, width: int = 46) -> str:
        """Plain text, a column of ``width`` characters for each actor."""
        return "\n".join(self._rows(width))

    def _rows(self, width: int) -> Iterator[str]:
        yield "      " + "".join(name.ljust(width) for name in self.columns).rstrip()
        for line in self.lines:
            cell = line.text if len(line.text) < width else line.text[: width - 2] + "…"
            mark = f" {BROKEN}" if line.broken else ""
            yield f"{line.step:4}  {' ' * (width * line.column)}{cell}{mark}"
        yield ""
        yield self.verdict


def report(world: World, outcome: ScheduleOutcome) -> ScheduleReport:
    """Report of a schedule that was just run step by step; the world must not have been reset since."""
    lines = []
    step = 0
    for number, taken in enumerate(outcome.taken):
        text = _event(taken, world)
        last = outcome.violation is not None and number == len(outcome.taken) - 1
        step += taken.steps
        lines.append(ScheduleLine(step, taken.action.actor, text, broken=last))
    verdict = str(outcome.violation) if outcome.violation is not None else "nothing broke"
    return ScheduleReport(world.columns, tuple(lines), verdict)


def _event(taken: Taken, world: World) -> str:
    """Text of one step."""
    where, choice = taken.where, taken.action.what
    text = where.text(world)
    if not choice:
        return text
    if where.kind == "waits":
        return choice
    return f"{choice}: {text}" if where.kind == "code" else f"{text}, {choice}"


def used_columns(found: ScheduleReport) -> ScheduleReport:
    """The report without the columns of actors that did nothing."""
    used = sorted({line.column for line in found.lines})
    position: dict[int, int] = {column: number for number, column in enumerate(used)}
    lines = tuple(ScheduleLine(line.step, position[line.column], line.text, line.broken) for line in found.lines)
    return ScheduleReport(tuple(found.columns[column] for column in used), lines, found.verdict)

