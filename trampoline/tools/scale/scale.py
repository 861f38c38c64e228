"""Scaling of the cost of one program's attach with the number of functions, in every design."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Lab
from trampoline.lab.functions import KernelFunction
from trampoline.tools.scale.mass_attach import Conditions, MassAttach, Progress, attach_and_detach
from trampoline.tools.scale.spot_check import Check, is_attachable

POINTS: tuple[int | None, ...] = (10, 100, 1_000, 10_000, None)
"""Numbers of functions, None for all."""
SECONDS_PER_POINT = 60.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A point of a design that was not measured, and the reason."""

    design: str
    functions: int
    why: str


@dataclass(frozen=True, slots=True)
class Scale:
    """The points of each design by increasing number of functions."""

    flavour: str
    points: tuple[MassAttach, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def wrong(self) -> bool:
        """True if the check of a function failed."""
        return any(point.wrong for point in self.points)

    def to_json(self) -> dict[str, Any]:
        """The points as plain values."""
        return asdict(self)


def scale(
    designs: Sequence[str],
    points: Sequence[int | None] = POINTS,
    *,
    btf: Btf | None = None,
    seconds_per_point: float = SECONDS_PER_POINT,
    progress: Progress = lambda what, done, of: None,
    **conditions: Any,
) -> Scale:
    """Attach a program to some functions and detach it, for each design and point, each on a kernel of its own.

    The functions of a point are evenly distributed over all that the design accepts; a larger point means all of them.
    ``conditions``: fields of ``trampoline.tools.scale.mass_attach.Conditions``. If a point took longer than
    ``seconds_per_point`` for attach and detach, the design's larger points are skipped. ``progress``: as for
    ``mass_attach``, with design and point in its text. Raises TrampolineError for an unknown name.
    """
    if not designs or not points or any(point is not None and point < 1 for point in points):
        raise TrampolineError("expected a design, and points of at least one function")
    ascending = sorted(set(points), key=lambda point: (point is None, point))
    under = {design: Conditions(**conditions, design=design) for design in designs}
    for each in under.values():
        each.lab(None).close()  # unknown names raise before anything is measured
    measured: list[MassAttach] = []
    left_out: list[LeftOut] = []
    for each in under.values():
        for result in _points(each, ascending, btf, seconds_per_point, progress):
            if isinstance(result, LeftOut):
                left_out.append(result)
            else:
                measured.append(result)
    return Scale(under[designs[0]].flavour, tuple(measured), tuple(left_out))


def _points(
    under: Conditions, ascending: Sequence[int | None], btf: Btf | None, budget: float, progress: Progress
) -> Iterator[MassAttach | LeftOut]:
    """Measure the points of one design."""
    design = under.design
    last: MassAttach | None = None
    total: int | None = None
    for point in ascending:
        if last is not None and total is not None:
            wanted = min(point or total, total)
            if wanted <= last.functions:
                continue  # all functions again
            seconds = last.attach.wall_seconds + last.detach.wall_seconds
            if seconds > budget:
                yield LeftOut(design, wanted, f"{last.functions} functions took {seconds:.0f} s")
                continue
        with under.lab(btf) as lab:
            functions = _attachable(lab, under.kind)
            total = len(functions)
            if not functions:
                yield LeftOut(design, 0, "it takes none of the functions")
                return
            last = attach_and_detach(
                lab,
                _spread(functions, point or total),
                under,
                lambda what, done, of: progress(f"{design}: {what} {of}", done, of),
            )
        yield last


def _attachable(lab: Lab, kind: str) -> list[KernelFunction]:
    """The functions of a kernel that the design accepts, by address."""
    prog = lab.prog(f"{kind}_multi", Check(lab).program, name="never_runs")
    functions = [function for function in lab.population.select(["*"]) if is_attachable(lab, prog, function)]
    lab.unload(prog)
    return functions


def _spread(functions: Sequence[KernelFunction], count: int) -> list[KernelFunction]:
    total = len(functions)
    return [functions[i * total // count] for i in range(count)] if count < total else list(functions)
