"""The two tools of a campaign, sequences and schedules, applied to one unit."""

from dataclasses import dataclass

from emu.schedule.schedulers.spec import scheduler_for
from trampoline.testing.kernel_pool import Kernels
from trampoline.testing.sequences import run_sequences
from trampoline.testing.state_machine import booted_kernels
from trampoline.tools.explore.session import ScheduleSession
from trampoline.tools.mutants.plan import SEQUENCES, Unit


@dataclass(slots=True)
class UnitResult:
    """Result of a unit. ``tries``: sequences or schedules started; ``found``: the finding in one line."""

    tries: int = 0
    steps: int = 0
    """Steps of sequences; those of schedules are not counted."""
    found: str = ""


class Tools:
    """Sequences and schedules, with kernels that stay booted for sequences."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernels] = {}

    def run(self, unit: Unit) -> UnitResult:
        """Run tries until one has a finding: any assertion, violation or other error counts."""
        tally = UnitResult()
        try:
            if unit.tool == SEQUENCES:
                self._sequences(unit, tally)
            else:
                _schedules(unit, tally)
        except Exception as error:
            tally.found = tally.found or _line(error)
        if tally.found:
            tally.tries = max(tally.tries, 1)
        return tally

    def close(self) -> None:
        """Free the kernels."""
        for kernels in self._kernels.values():
            kernels.close()
        self._kernels.clear()

    def _sequences(self, unit: Unit, tally: UnitResult) -> None:
        if unit.design not in self._kernels:
            self._kernels[unit.design] = booted_kernels(unit.design)
        ran = run_sequences(
            unit.design,
            seed_number=unit.seed,
            examples=unit.tries,
            steps=unit.steps,
            kernels=self._kernels[unit.design],
        )
        tally.tries, tally.steps = ran.examples, ran.steps
        if ran.failure is not None:
            tally.found = ran.failure.text
            # A failing sequence was run once more.
            tally.tries -= 1


def _schedules(unit: Unit, tally: UnitResult) -> None:
    with ScheduleSession(unit.scenario, unit.design, unit.flavour, unit.config) as session:
        scheduler = scheduler_for(unit.scheduler, unit.seed)
        while tally.tries < unit.tries and scheduler.begin():
            tally.tries += 1
            outcome = session.run(scheduler)
            scheduler.end(outcome)
            if outcome.violation is not None:
                tally.found = _line(outcome.violation)
                return
            if outcome.cut:
                tally.found = f"no end after {outcome.steps} steps"
                return


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    name = type(error).__name__
    return f"{name}: {text}" if text and name != "Violation" else text or name
