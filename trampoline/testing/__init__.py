"""For users' own tests: Hypothesis strategies, a state machine, and the reference model that it compares with.

Needs Hypothesis (``pip install tramplab[testing]``).
"""

from trampoline.extras import extra

with extra("testing", "trampoline.testing"):
    import hypothesis  # noqa: F401

from trampoline.designs.traits import AfterSleep, Order, Traits
from trampoline.testing.example_database import example_database
from trampoline.testing.kernel_pool import Kernels
from trampoline.testing.leak_check import Holdings
from trampoline.testing.reference_model import Reference
from trampoline.testing.sequences import Failure, Sequences, run_sequences
from trampoline.testing.state_machine import booted_kernels, lab_machine
from trampoline.testing.traced_functions import Prototype, TracedFunction, add_functions

__all__ = [
    "AfterSleep",
    "Failure",
    "Holdings",
    "Kernels",
    "Order",
    "Prototype",
    "Reference",
    "Sequences",
    "TracedFunction",
    "Traits",
    "add_functions",
    "booted_kernels",
    "example_database",
    "lab_machine",
    "run_sequences",
]
