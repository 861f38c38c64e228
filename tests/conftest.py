"""One Hypothesis profile for every run, so that the same tree gives the same verdict everywhere
(`pytest --hypothesis-profile=explore` draws at random instead, and more), and the programs that tests use.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

import pytest
from hypothesis import settings

# Where tramplab is installed pytest has its plugin already.
_IS_INSTALLED = any(point.value == "trampoline.tools.pytest_plugin" for point in entry_points(group="pytest11"))
pytest_plugins = ["pytester", *([] if _IS_INSTALLED else ["trampoline.tools.pytest_plugin"])]

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--filetests-update``."""
    parser.addoption(
        "--filetests-update", action="store_true", help="write what is found into the files of tests/filetests"
    )


@pytest.fixture
def filetests_update(request: pytest.FixtureRequest) -> bool:
    """Whether expectations are to be written, not checked."""
    return bool(request.config.getoption("--filetests-update"))


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


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, here and in processes that the test starts, also where the tests run with SIGINT
    ignored, as background jobs and some CI runners do: an ignored signal stays ignored in children.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
