"""Many schedules of one scenario: how many, what they covered, what they found."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emu.schedule.actor import Where
from emu.schedule.replay import Replay
from emu.schedule.report import Report, report, used_columns
from emu.schedule.run import Outcome, Scheduler
from emu.schedule.shrink import shrink
from emu.schedule.spec import scheduler_for
from trampoline.explore.session import Session


@dataclass(slots=True)
class Found:
    """A violation, as small as it could be made. ``number``: of the schedule that found it, from 1."""

    number: int
    outcome: Outcome
    shrunk: Outcome
    runs: int
    report: Report
    command: str


@dataclass(slots=True)
class Tally:
    """What a campaign did so far."""

    schedules: int = 0
    pruned: int = 0
    cut: int = 0
    steps: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Where two actors stood at a switch from one to the other."""
    found: Found | None = None

    @property
    def rate(self) -> float:
        """Schedules per second."""
        return self.schedules / self.seconds if self.seconds else 0.0


def explore(
    session: Session,
    scheduler: Scheduler,
    *,
    schedules: int | None = None,
    seconds: float | None = None,
    progress: Callable[[Tally], object] = lambda tally: None,
) -> Tally:
    """Run schedules until one breaks something, none is left, or so many were run or so much time has passed.

    Time only ends it: which schedules are run depends on the scheduler alone.
    """
    tally = Tally()
    begun = time.monotonic()
    for outcome in _outcomes(session, scheduler, schedules, None if seconds is None else begun + seconds):
        tally.schedules += 1
        tally.pruned += outcome.pruned
        tally.cut += outcome.cut
        tally.steps += outcome.steps
        tally.seconds = time.monotonic() - begun
        _cover(tally, outcome)
        if tally.schedules % 100 == 0:
            progress(tally)
        if outcome.violation is not None:
            tally.found = minimise(session, outcome, tally.schedules)
            return tally
    else:
        tally.exhausted = schedules is None or tally.schedules < schedules
        if seconds is not None and tally.seconds >= seconds:
            tally.exhausted = False
    return tally


def _outcomes(
    session: Session, scheduler: Scheduler, schedules: int | None, deadline: float | None
) -> Iterator[Outcome]:
    number = 0
    while (schedules is None or number < schedules) and (deadline is None or time.monotonic() < deadline):
        if not scheduler.begin():
            return
        outcome = session.run(scheduler)
        scheduler.end(outcome)
        number += 1
        yield outcome


def _cover(tally: Tally, outcome: Outcome) -> None:
    before = None
    for taken in outcome.taken:
        if before is not None and before.action.actor != taken.action.actor:
            tally.pairs.add((_place(before.where), _place(taken.where)))
        before = taken


def _place(where: Where) -> str:
    return f"{where.address:#x}" if where.address else where.kind


def minimise(session: Session, outcome: Outcome, number: int = 1) -> Found:
    """The smallest schedule that breaks the same, with actors left out that it can do without."""
    made = shrink(session.run, outcome)
    best, runs, kept = made.outcome, made.runs, session
    assert best.violation is not None
    for letter in sorted({token[0] for token in best.tokens} - {"z"}):
        trial = _without(session, kept, letter)
        if trial is None:
            continue
        found = trial.run(Replay([token for token in best.tokens if token[0] != letter], strict=False))
        runs += 1
        if found.violation is not None and found.violation.kind == best.violation.kind:
            made = shrink(trial.run, found)
            best, runs = made.outcome, runs + made.runs
            if kept is not session:
                kept.close()
            kept = trial
        else:
            trial.close()
    replayed = kept.replay(best.text)
    text = used_columns(report(kept.world, replayed))
    command = kept.command(replayed)
    if kept is not session:
        kept.close()
    return Found(number, outcome, replayed, runs, text, command)


def _without(session: Session, kept: Session, letter: str) -> Session | None:
    """The scenario without one more actor; None where that leaves no task or nothing to do."""
    dropped = set(kept.address.dropped) | {letter}
    letters = session.letters
    if not any(letter not in dropped for letter in letters[: session.task_count]):
        return None
    if not any(letter not in dropped for letter in letters[session.task_count :]):
        return None
    address = session.address
    return Session(address.scenario, address.design, address.flavour, address.config, dropped=dropped)


def campaign(
    scenario: str,
    design: str,
    flavour: str = "6.12",
    config: str = "voluntary",
    *,
    scheduler: str = "pct:3",
    seed: int = 1,
    schedules: int | None = None,
    seconds: float | None = None,
    progress: Callable[[Tally], object] = lambda tally: None,
) -> Tally:
    """``explore`` on a session of its own. EmuError for a scheduler that there is not; KernelError where the design
    can't do what the scenario needs.
    """
    with Session(scenario, design, flavour, config) as session:
        return explore(
            session, scheduler_for(scheduler, seed), schedules=schedules, seconds=seconds, progress=progress
        )
