"""For users' own tests: Hypothesis strategies, a state machine, and the reference model that it compares with.

Needs Hypothesis (``pip install tramplab[testing]``).
"""

from trampoline.testing.functions import Prototype, Traced, add_functions
from trampoline.testing.holdings import Holdings
from trampoline.testing.kernels import Kernels
from trampoline.testing.machine import booted_kernels, lab_machine
from trampoline.testing.reference import Reference
from trampoline.testing.sequences import Failure, Sequences, run_sequences
from trampoline.testing.traits import TRAITS, AfterSleep, Order, Traits

__all__ = [
    "TRAITS",
    "AfterSleep",
    "Failure",
    "Holdings",
    "Kernels",
    "Order",
    "Prototype",
    "Reference",
    "Sequences",
    "Traced",
    "Traits",
    "add_functions",
    "booted_kernels",
    "lab_machine",
    "run_sequences",
]
