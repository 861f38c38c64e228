"""Property-based tests of several designs, which pytest-xdist spreads over all processors:
``pytest -n auto examples/state_machines.py``. What fails is kept where the next run, and others, find it.
"""

import subprocess
import sys

from hypothesis import HealthCheck, settings

from trampoline.testing import example_database, lab_machine

SHARED = settings(
    max_examples=3,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A directory of this machine, and a Redis server too where TRAMP_REDIS names one.
    database=example_database(),
)


def case(design: str) -> type:
    """A test of one design."""
    made: type = lab_machine(design).TestCase
    made.settings = SHARED  # type: ignore[attr-defined]
    return made


TestPerFunction = case("per-function")
TestTramplab = case("specialised")


def main() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
