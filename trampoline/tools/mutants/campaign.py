"""Campaign for one mutant: worker processes execute the units of the plan until one finds it.

The result does not depend on the speed of the workers: it is the finding of the first unit in plan order that has one,
unless the time limit ends the campaign earlier.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from trampoline.tools.mutants.catalogue import known
from trampoline.tools.mutants.mutant import Mutant, chosen
from trampoline.tools.mutants.patch import MutantError
from trampoline.tools.mutants.plan import HUNTED, SCHEDULES, SEQUENCES, Unit, plan

HANGS_AFTER = 60.0
"""Seconds after which a unit, which takes two at most, counts as hung."""
_METHOD = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass(frozen=True, slots=True)
class Hunt:
    """Options of a campaign: ``budget`` in seconds, ``jobs`` processes, ``module``: file that defines the mutant."""

    budget: float = 60.0
    jobs: int = 2
    seed: int = 1
    module: str | None = None
    designs: Sequence[str] = HUNTED


@dataclass(slots=True)
class Hunted:
    """Result of a campaign. ``tries``: of the tool that found the mutant, or of both. ``unit``: that found it."""

    name: str
    seconds: float = 0.0
    unit: Unit | None = None
    what: str = ""
    tries: int = 0
    sequences: int = 0
    """Number of schedules up to the finding, which is included; likewise for the other counts."""
    steps: int = 0
    schedules: int = 0
    violations: int = 0
    seen: list[str] = field(default_factory=list)
    """All violations in words; a control may have several."""

    @property
    def found(self) -> bool:
        """True if the mutant was found."""
        return self.unit is not None

    @property
    def by(self) -> str | None:
        """The tool that found it; None if it was not found."""
        return None if self.unit is None else self.unit.tool

    def as_json(self) -> dict[str, object]:
        """The row of the table."""
        return {
            "name": self.name,
            "found": self.found,
            "by": self.by,
            "tries": self.tries,
            "seconds": round(self.seconds, 2),
        }


def control_json(control: "Hunted | None") -> dict[str, int]:
    """Counts of the control; empty without one."""
    ran = control or Hunted("control")
    return {"steps": ran.steps, "schedules": ran.schedules, "violations": ran.violations}


@dataclass(slots=True)
class _Ended:
    tries: int
    steps: int
    found: str


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    at: int
    """The unit that the worker runs, or runs next."""
    since: float
    over: bool = False


def hunt(mutant: Mutant, how: Hunt) -> Hunted:
    """Run the campaign for a mutant. Raises MutantError if it cannot be applied."""
    return _Crew(mutant.name, how, control=False).run()


def control(how: Hunt) -> Hunted:
    """Run the same campaign on unchanged code, for the whole budget."""
    return _Crew("", how, control=True).run()


class _Crew:
    """The workers of one campaign."""

    def __init__(self, name: str, how: Hunt, *, control: bool) -> None:
        self._name, self._how, self._control = name, how, control
        self._ended: dict[int, _Ended] = {}
        self._begun = time.monotonic()

    def run(self) -> Hunted:
        workers = [self._start(number) for number in range(self._how.jobs)]
        try:
            self._watch(workers)
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()
        return self._summary()

    def _start(self, number: int) -> _Worker:
        context: Any = multiprocessing.get_context(_METHOD)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(theirs, self._name, self._how, number, self._begun, self._control), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, number, time.monotonic())

    def _watch(self, workers: Sequence[_Worker]) -> None:
        while True:
            first = None if self._control else self._first()
            going = [worker for worker in workers if not worker.over and (first is None or worker.at < first)]
            if not going:
                return
            for pipe in wait([worker.pipe for worker in going], timeout=1.0):
                self._hear(next(worker for worker in going if worker.pipe is pipe))
            now = time.monotonic()
            for worker in going:
                if not worker.over and now - worker.since > HANGS_AFTER:
                    self._lost(worker, f"no end within {HANGS_AFTER:.0f} seconds")

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.pipe.recv()
        except EOFError:
            worker.process.join()
            self._lost(worker, f"the process ended with status {worker.process.exitcode}")
            return
        worker.since = time.monotonic()
        match said:
            case ("ends", int(index), int(tries), int(steps), str(found)):
                self._ended[index] = _Ended(tries, steps, found)
                worker.at = index + self._how.jobs
            case ("misfit", str(reason)):
                raise MutantError(reason)
            case _:
                worker.over = True

    def _lost(self, worker: _Worker, how: str) -> None:
        """Record a dead or hung worker as a finding."""
        unit = _units(self._how, worker.at)[-1]
        self._ended[worker.at] = _Ended(unit.tries, 0, how)
        worker.over = True

    def _first(self) -> int | None:
        return min((index for index, ended in self._ended.items() if ended.found), default=None)

    def _summary(self) -> Hunted:
        first = None if self._control else self._first()
        result = Hunted(self._name, time.monotonic() - self._begun)
        units = _units(self._how, max(self._ended, default=-1))
        for index in sorted(self._ended):
            if first is not None and index > first:
                break
            unit, ended = units[index], self._ended[index]
            if unit.tool == SEQUENCES:
                result.sequences += ended.tries
                result.steps += ended.steps
            else:
                result.schedules += ended.tries
            if ended.found:
                result.violations += 1
                result.seen.append(f"{unit.subject}: {ended.found}")
        result.tries = result.sequences + result.schedules
        if first is not None:
            result.unit, result.what = units[first], self._ended[first].found
            result.tries = result.schedules if result.unit.tool == SCHEDULES else result.sequences
        return result


def _units(how: Hunt, last: int) -> list[Unit]:
    """The plan up to and including a unit."""
    units: list[Unit] = []
    for unit in _plan(how):
        if len(units) > last:
            break
        units.append(unit)
    return units


def _plan(how: Hunt) -> Iterator[Unit]:
    return plan(how.seed, how.designs)


def find(name: str, module: str | None) -> Mutant:
    """A mutant by name, from the file ``module`` or from the catalogue. Raises MutantError."""
    return chosen(known(module), [name])[0]


def _work(pipe: Connection, name: str, how: Hunt, number: int, begun: float, control: bool) -> None:
    """Main function of a worker: runs every ``jobs``-th unit of the plan with the mutant applied."""
    _be_silent()
    from contextlib import ExitStack

    from trampoline.tools.mutants.detectors import Tools

    with ExitStack() as stack:
        if not control:
            try:
                stack.enter_context(find(name, how.module).applied())
            except Exception as error:
                kind = "" if isinstance(error, MutantError) else f"{type(error).__name__}: "
                pipe.send(("misfit", f"{name}: {kind}{error}"))
                return
        tools = Tools()
        for index, unit in enumerate(_plan(how)):
            if time.monotonic() - begun >= how.budget:
                break
            if index % how.jobs == number:
                tally = tools.run(unit)
                pipe.send(("ends", index, tally.tries, tally.steps, tally.found))
                if tally.found and not control:
                    break
        pipe.send(("over",))


def _be_silent() -> None:
    """Discard the worker's output; the parent process reports."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)
