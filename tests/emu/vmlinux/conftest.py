"""Memory images of real kernels, where there are some, and a small guest written by hand."""

from pathlib import Path

import pytest

from real_cores import CORES, HOW
from small_guest import SmallGuest


@pytest.fixture(scope="session")
def cores() -> Path:
    """The folder with memory images of real kernels."""
    if not CORES.is_dir():
        pytest.skip(HOW)
    return CORES


@pytest.fixture
def guest(tmp_path):
    made = []

    def make(functions, handlers=(), **how):
        made.append(SmallGuest(tmp_path, functions, handlers, **how))
        return made[-1]

    yield make
    for one in made:
        one.machine.close()
