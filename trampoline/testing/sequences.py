"""Sequences from a seed number: the number of steps executed, and the first failure."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from trampoline.designs import DesignChoice
from trampoline.designs.traits import Traits
from trampoline.releases import releases as all_releases
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.kernel_pool import Kernels
from trampoline.testing.rules.base import LOOKS, SequenceTally
from trampoline.testing.state_machine import lab_machine

STEPS = 30
"""Default number of steps of one sequence."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failed sequence, run once more: its error, and its steps as a program."""

    error: BaseException
    program: str

    @property
    def text(self) -> str:
        """The error in one line."""
        first, *_ = str(self.error).splitlines() or [""]
        return f"{type(self.error).__name__}: {first}"


@dataclass(frozen=True, slots=True)
class Sequences:
    """Number of sequences and of steps in all of them (with those of shrinking), and the first failure."""

    examples: int
    steps: int
    failure: Failure | None


def run_sequences(
    design: DesignChoice,
    traits: Traits | None = None,
    *,
    releases: Sequence[KernelRelease] = all_releases(),
    seed_number: int = 0,
    examples: int = 20,
    steps: int = STEPS,
    shrink: bool = False,
    kernels: Kernels | None = None,
) -> Sequences:
    """Runs up to ``examples`` sequences on a design; stops at the first failure. Deterministic in its arguments.

    ``shrink``: look for a shorter sequence that fails too. ``kernels``: booted kernels to use, which stay booted, for
    several runs on one design; by default they are closed at the end. ``design`` and ``traits`` as for ``lab_machine``.
    Any Exception of a step is a failure; KeyboardInterrupt and other BaseExceptions are raised.
    """
    tally = SequenceTally()
    machine = lab_machine(design, traits, releases=releases, tally=tally, kernels=kernels)
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    reported: list[str] = []
    failure = None
    try:
        with with_reporter(lambda text: reported.append(str(text))):
            run_state_machine_as_test(seed(seed_number)(machine), settings=chosen)
    except Exception as error:
        failure = Failure(error, _program("\n".join(reported or getattr(error, "__notes__", []))))
    finally:
        if kernels is None:
            machine.SUBJECT.kernels.close()
    return Sequences(tally.examples, tally.steps, failure)


def _program(text: str) -> str:
    """Hypothesis's report of the steps, without the invariants that run after each step."""
    looks = tuple(f"state.{name}(" for name in LOOKS)
    return "\n".join(line for line in text.splitlines() if not line.startswith(looks))
