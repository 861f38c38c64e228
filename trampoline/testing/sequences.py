"""Sequences from a seed number: how many steps were executed, and what failed first."""

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
"""Steps of one sequence, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The first sequence that failed, after it was run once more: its error, and the steps as a program."""

    error: BaseException
    program: str

    @property
    def text(self) -> str:
        """The error in a line."""
        first, *_ = str(self.error).splitlines() or [""]
        return f"{type(self.error).__name__}: {first}"


@dataclass(frozen=True, slots=True)
class Sequences:
    """What was run: sequences, steps in all of them (with shrinking those of the attempts too), and what failed."""

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
    """Run so many sequences on a design, or fewer, up to the first that fails. The same arguments run the same ones.

    ``shrink``: look for a shorter sequence that fails as well. ``kernels``: booted ones to be used, and left booted,
    for several runs on one design; where none are given, they are given back at the end. ``design`` and ``traits`` as
    for ``lab_machine``. Whatever a step raises is a failure; Ctrl-C and what hides behind BaseException is not.
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
    """What Hypothesis prints, without what is looked at after each step."""
    looks = tuple(f"state.{name}(" for name in LOOKS)
    return "\n".join(line for line in text.splitlines() if not line.startswith(looks))
