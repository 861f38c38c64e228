"""Campaign: many schedules of one scenario, with their number, coverage and findings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from emu.schedule.action import decode
from emu.schedule.report import ScheduleReport, report, used_columns
from emu.schedule.run import ScheduleOutcome, Scheduler
from emu.schedule.schedulers.replay import Replay
from emu.schedule.shrink import shrink
from trampoline.bpf.errors import TrampolineError
from trampoline.designs import Factory
from trampoline.tools.explore.chunk import CHUNK, SAMPLED, ChunkResult, Count, Work, outcomes
from trampoline.tools.explore.design_name import NamedDesign
from trampoline.tools.explore.failing_schedules import Examples
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.session import ScheduleSession
from trampoline.tools.explore.workers import Processes, ThisProcess, Workers

_PROGRESS_SECONDS = 0.5


@dataclass(slots=True)
class FoundViolation:
    """A violation, minimised in ``runs`` runs. ``number``: number of the schedule that found it, from 1; 0 if it was
    known before.
    """

    number: int
    outcome: ScheduleOutcome
    shrunk: ScheduleOutcome
    runs: int
    report: ScheduleReport
    command: str
    address: ScheduleAddress


@dataclass(slots=True)
class CampaignTally:
    """Progress of a campaign, over the schedules of ``chunks`` only."""

    count: Count = field(default_factory=Count)
    chunks: set[int] = field(default_factory=set)
    seconds: float = 0.0
    exhausted: bool = False
    interrupted: bool = False
    """True if Ctrl-C ended the campaign."""
    broken: bool = False
    """True if a violation was found; ``found`` has it once the campaign is over."""
    known: int = 0
    """Number of schedules with known violations that were tried first."""
    found: FoundViolation | None = None

    @property
    def schedules(self) -> int:
        """Number of schedules that were run."""
        return self.count.schedules

    @property
    def steps(self) -> int:
        """Number of steps in all schedules."""
        return self.count.steps

    @property
    def pruned(self) -> int:
        """Number of schedules that were abandoned as redundant."""
        return self.count.pruned

    @property
    def cut(self) -> int:
        """Number of schedules that were cut at the step limit."""
        return self.count.cut

    @property
    def rate(self) -> float:
        """Schedules per second."""
        return self.schedules / self.seconds if self.seconds else 0.0


Progress = Callable[[CampaignTally], object]


def _quiet(tally: CampaignTally) -> None:
    """Progress callback that ignores its argument."""


def explore(
    session: ScheduleSession,
    scheduler: Scheduler,
    *,
    schedules: int | None = None,
    seconds: float | None = None,
    progress: Progress = _quiet,
) -> CampaignTally:
    """Run schedules on a session until one has a violation, the scheduler has no more, or ``schedules`` or ``seconds``
    is reached. The time limit only ends the campaign: the scheduler alone determines which schedules are run.
    """
    tally = CampaignTally()
    count, begun = tally.count, time.monotonic()
    ends = None if seconds is None else begun + seconds
    for outcome in outcomes(session, scheduler, schedules, lambda: ends is not None and time.monotonic() >= ends):
        count.ran(outcome)
        tally.seconds = time.monotonic() - begun
        if count.schedules % CHUNK == 0:
            progress(tally)
        if outcome.violation is not None:
            tally.found = minimise(session, outcome, count.schedules)
            break
    else:
        tally.exhausted = schedules is None or count.schedules < schedules
        if seconds is not None and tally.seconds >= seconds:
            tally.exhausted = False
    count.coverage = session.take_coverage()
    return tally


def minimise(session: ScheduleSession, outcome: ScheduleOutcome, number: int = 1) -> FoundViolation:
    """Reduce a schedule to the smallest one with the same violation, without the actors that it does not need."""
    covering, session.covering = session.covering, False
    try:
        return _minimise(session, outcome, number)
    finally:
        session.covering = covering


def _minimise(session: ScheduleSession, outcome: ScheduleOutcome, number: int) -> FoundViolation:
    made = shrink(session.run, outcome)
    best, runs, kept = made.outcome, made.runs, session
    assert best.violation is not None
    for letter in sorted({token[0] for token in best.tokens} - {"z"}):
        trial = kept.without(letter)
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
    smallest = _as_found(kept, number, outcome, best.text, runs)
    if kept is not session:
        kept.close()
    return smallest


def _as_found(
    session: ScheduleSession, number: int, outcome: ScheduleOutcome, schedule: str, runs: int
) -> FoundViolation:
    """The violation of a schedule, with its report."""
    replayed = session.replay(schedule)
    text = used_columns(report(session.world, replayed))
    address = session.address_of(replayed)
    return FoundViolation(number, outcome, replayed, runs, text, f"tramp replay {address}", address)


def run_campaign(
    work: Work,
    workers: Workers,
    *,
    schedules: int | None = None,
    seconds: float | None = None,
    examples: Examples | None = None,
    progress: Progress = _quiet,
) -> CampaignTally:
    """Let workers run a campaign's chunks until one has a violation, no chunk is left, or ``schedules`` or ``seconds``
    is reached.

    The result does not depend on the workers: it is the violation with the lowest schedule number, and later schedules
    are not counted. Ctrl-C ends the campaign with the result so far (``interrupted``). ``examples``: known violations,
    which are tried first and end the campaign if one still fails; new violations are added. Raises what ``Session``
    raises, and EmuError.
    """
    tally = CampaignTally()
    if examples is not None and _try_known(work, examples, tally):
        return tally
    merge = _InOrder(tally)
    chunks = work.chunks(schedules)
    workers.begin(work, seconds)
    begun = time.monotonic()
    ends = None if seconds is None else begun + seconds
    more = True
    try:
        while True:
            over = ends is not None and time.monotonic() >= ends
            more = more and not over and merge.first_broken is None
            while more and workers.under_way < workers.slots:
                chunk = next(chunks, None)
                if chunk is None:
                    more = False
                else:
                    workers.submit(chunk)
            if not workers.under_way or (merge.is_settled and not over):
                break
            if over:
                workers.stop()
                if not workers.under_way:
                    break
            for result in workers.finished(_PROGRESS_SECONDS):
                merge.add(result)
            tally.seconds, tally.broken = time.monotonic() - begun, merge.first_broken is not None
            progress(tally)
            if tally.interrupted:
                break
    except KeyboardInterrupt:
        tally.interrupted = True
    finally:
        workers.stop()
        while workers.under_way:
            for result in workers.finished(None):
                merge.add(result)
    merge.finish()
    tally.seconds = time.monotonic() - begun
    tally.broken = merge.broken is not None
    if merge.broken is not None:
        tally.found = _found(work, merge.broken, tally.schedules)
        if examples is not None:
            examples.save(tally.found.address)
    return tally


def _found(work: Work, schedule: str, number: int) -> FoundViolation:
    """The violation of a schedule that a worker has run, reproduced and minimised in this process."""
    with ScheduleSession(work.scenario, work.design, work.flavour, work.config) as session:
        outcome = session.run(Replay(decode(schedule), strict=False))
        if outcome.violation is None:
            raise TrampolineError(f"{schedule} has a violation in a worker, but none here")
        return minimise(session, outcome, number)


def _try_known(work: Work, examples: Examples, tally: CampaignTally) -> bool:
    """Try the known violations; true if one still fails. Those that do not are removed from ``examples``."""
    for address in examples.known(work):
        tally.known += 1
        with ScheduleSession(work.scenario, work.design, work.flavour, work.config, dropped=address.dropped) as session:
            outcome = session.run(Replay(decode(address.schedule), strict=False))
            if outcome.violation is not None:
                # It was minimised when it was found.
                tally.broken, tally.found = True, _as_found(session, 0, outcome, outcome.text, 0)
                return True
        examples.forget(address)
    return False


class _InOrder:
    """Counts results in the order of their numbers, up to the first violation."""

    def __init__(self, tally: CampaignTally) -> None:
        self._tally = tally
        self._waiting: dict[int, ChunkResult] = {}
        self._next = 0
        self.broken: str | None = None
        """The failing schedule, once all schedules before it are counted."""

    @property
    def first_broken(self) -> int | None:
        """Lowest number of a chunk with a known violation."""
        if self.broken is not None:
            return self._next - 1
        return min((number for number, result in self._waiting.items() if result.broken), default=None)

    @property
    def is_settled(self) -> bool:
        """True if no result that is still to come can be counted."""
        return self.broken is not None

    def add(self, result: ChunkResult) -> None:
        """Add a result; a repeated one is ignored."""
        self._tally.interrupted |= result.interrupted
        if result.number < self._next or result.number in self._waiting:
            return
        self._waiting[result.number] = result
        while self._next in self._waiting and self.broken is None:
            self._count(self._waiting.pop(self._next))
            self._next += 1

    def finish(self) -> None:
        """Count the remaining partial results; no more will come."""
        for number in sorted(self._waiting):
            if self.broken is None:
                self._count(self._waiting[number])
        self._waiting.clear()

    def _count(self, result: ChunkResult) -> None:
        tally = self._tally
        tally.count.add(result.count)
        tally.chunks.add(result.number)
        tally.exhausted |= result.exhausted
        self.broken = result.broken


def campaign(
    scenario: str,
    design: str | Factory,
    flavour: str = "6.12",
    config: str = "voluntary",
    *,
    scheduler: str = "pct:3",
    seed: int = 1,
    schedules: int | None = None,
    seconds: float | None = None,
    jobs: int = 1,
    coverage: int = SAMPLED,
    progress: Progress = _quiet,
) -> CampaignTally:
    """``run_campaign`` in this process, or in ``jobs`` processes.

    Raises EmuError for an unknown scheduler; KernelError if the design cannot do what the scenario needs;
    TrampolineError.
    """
    if not isinstance(design, str):
        design = NamedDesign.of(design).text
    work = Work(scenario, design, flavour, config, scheduler, seed, coverage)
    workers = Processes(jobs) if jobs > 1 and work.is_divisible else ThisProcess()
    try:
        return run_campaign(work, workers, schedules=schedules, seconds=seconds, progress=progress)
    finally:
        workers.close()
