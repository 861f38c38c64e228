"""One Hypothesis profile for every run, so that the same tree gives the same verdict everywhere
(`pytest --hypothesis-profile=explore` draws at random instead, and more), and the programs that tests use.
"""

import os
import shutil
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture
def tool() -> Callable[[str], str]:
    """Path of a program that our output is held against; where CI is set it must be there."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            if os.environ.get("CI"):
                pytest.fail(f"{name} is not installed")
            pytest.skip(f"{name} is not installed")
        return path

    return find
