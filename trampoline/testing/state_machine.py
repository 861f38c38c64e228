"""The state machine: links, calls and other users of the same functions come and go, and what happens is compared with
the reference model after every step.
"""

from collections.abc import Sequence

from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DesignChoice, design_info
from trampoline.designs.traits import Traits
from trampoline.releases import releases as all_releases
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.kernel_pool import Kernels
from trampoline.testing.rules.base import CPUS, FIXED, SequenceTally, Subject
from trampoline.testing.rules.call import CallSteps
from trampoline.testing.rules.ftrace_users import UserSteps
from trampoline.testing.rules.link import LinkSteps
from trampoline.testing.rules.mixed import MixedSteps
from trampoline.testing.rules.observed import ObservedSteps
from trampoline.testing.rules.other import OtherSteps


class LabMachine(LinkSteps, CallSteps, MixedSteps, OtherSteps, ObservedSteps, UserSteps):
    """The state machine of some design; ``lab_machine`` makes them."""


def booted_kernels(design: DesignChoice, traits: Traits | None = None) -> Kernels:
    """Kernels of a design for several runs; its ``close`` gives them back. TrampolineError as ``lab_machine``."""
    return Kernels(design, FIXED, vcpus=CPUS, counts=_documented(design, traits).count_is_actual)


def lab_machine(
    design: DesignChoice,
    traits: Traits | None = None,
    *,
    releases: Sequence[KernelRelease] = all_releases(),
    tally: SequenceTally | None = None,
    kernels: Kernels | None = None,
) -> type[LabMachine]:
    """The state machine of a design, by name or by what makes it: run it with Hypothesis's
    ``run_state_machine_as_test``, or let pytest find its ``TestCase``.

    ``traits``: its documented differences, by default those of its DesignInfo. Each run draws one of the
    releases, a boot, and functions with prototypes of its own. ``tally`` counts what is run. Kernels stay booted
    between runs: in ``kernels`` of this design (``booted_kernels``), or in some of the class's own
    (``SUBJECT.kernels``). TrampolineError for a design of which nothing is documented.
    """
    traits = _documented(design, traits)
    kernels = kernels or booted_kernels(design, traits)
    chosen = Subject(design, traits, tuple(releases), kernels, tally or SequenceTally())

    class Chosen(LabMachine):
        SUBJECT = chosen

    Chosen.__name__ = Chosen.__qualname__ = f"LabMachine[{design if isinstance(design, str) else 'own'}]"
    return Chosen


def _documented(design: DesignChoice, traits: Traits | None) -> Traits:
    info = design_info(design)
    found = traits or info.traits
    if found is None:
        raise TrampolineError(f"no traits are known of {info.name!r}: pass them, or set them in its DesignInfo")
    return found
