"""The two tools of a hunt, on one unit: what they find, and after how many tries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from emu.schedule.spec import scheduler_for
from trampoline.explore.session import Session
from trampoline.mutants.plan import SEQUENCES, Unit
from trampoline.testing import lab_machine


@dataclass(slots=True)
class Tally:
    """What a unit came to. ``tries``: sequences or schedules begun; ``found``: what was wrong, in a line."""

    tries: int = 0
    steps: int = 0
    """Of sequences: rules run. Of schedules: none are counted."""
    found: str = ""


def run(unit: Unit) -> Tally:
    """Try until something is wrong. Any assertion, violation or error while something runs is something wrong."""
    tally = Tally()
    tool: Callable[[Unit, Tally], None] = _sequences if unit.tool == SEQUENCES else _schedules
    try:
        tool(unit, tally)
    except Exception as error:
        tally.found = tally.found or _line(error)
        tally.tries = max(tally.tries, 1)
    return tally


def _sequences(unit: Unit, tally: Tally) -> None:
    machine: Any = lab_machine(unit.design)

    class Counted(machine):  # type: ignore[misc]
        def __init__(self) -> None:
            tally.tries += 1
            super().__init__()

        @invariant()
        def a_step_was_made(self) -> None:
            """Nothing to hold: it is called after every step."""
            tally.steps += 1

    Counted.__name__ = Counted.__qualname__ = machine.__name__
    try:
        run_state_machine_as_test(
            seed(unit.seed)(Counted),
            settings=settings(
                max_examples=unit.tries,
                stateful_step_count=unit.steps,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
                report_multiple_bugs=False,
                print_blob=False,
            ),
        )
    except Exception:
        # Hypothesis runs what failed once more.
        tally.tries = max(tally.tries - 1, 1)
        raise


def _schedules(unit: Unit, tally: Tally) -> None:
    with Session(unit.scenario, unit.design, unit.flavour, unit.config) as session:
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
