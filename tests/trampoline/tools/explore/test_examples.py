"""Failing schedules and examples in Hypothesis's database, of a directory and of a Redis server."""

import socket
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

from patience import PATIENCE
from trampoline.bpf.errors import TrampolineError
from trampoline.testing import example_database
from trampoline.testing.example_database import REDIS_VARIABLE
from trampoline.tools.cli import main
from trampoline.tools.explore.campaign import run_campaign
from trampoline.tools.explore.chunk import Work, close_session
from trampoline.tools.explore.failing_schedules import Examples
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.workers import ThisProcess

pytestmark = pytest.mark.slow

BROKEN = Work("livepatch-meets-fexit", "tracing-multi-v2", coverage=0)


@pytest.fixture(autouse=True)
def no_session_is_kept():
    yield
    close_session()


@pytest.fixture
def redis_url(tool, tmp_path):
    """A server of its own, on loopback, which keeps nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [tool("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def test_what_broke_something_is_tried_first():
    examples = Examples(InMemoryExampleDatabase())
    first = run_campaign(BROKEN, ThisProcess(), schedules=20, examples=examples)
    assert first.found.number >= 1
    assert first.known == 0
    assert examples.known(BROKEN) == [first.found.address]
    again = run_campaign(BROKEN, ThisProcess(), schedules=20, examples=examples)
    assert (again.found.number, again.known, again.schedules) == (0, 1, 0)
    assert again.found.command == first.found.command
    # Of another campaign nothing is known.
    assert examples.known(Work("livepatch-meets-fexit", "tracing-multi-v2-fixed")) == []


def test_what_breaks_nothing_any_more_is_forgotten():
    database = InMemoryExampleDatabase()
    examples = Examples(database)
    work = Work("attach-during-call", "per-function", coverage=0)
    harmless = ScheduleAddress(work.scenario, work.design, work.flavour, work.config, "b", "a2c9")
    examples.save(harmless)
    key = next(iter(database.data))
    database.save(key, b"of another version")
    assert examples.known(work) == [harmless]
    tally = run_campaign(work, ThisProcess(), schedules=3, examples=examples)
    assert (tally.known, tally.schedules, tally.found) == (1, 3, None)
    assert examples.known(work) == []
    assert not database.data[key]


def test_campaigns_share_a_server(redis_url, tmp_path, capsys, monkeypatch):
    arguments = ["explore", "--scenario", BROKEN.scenario, "--design", BROKEN.design, "--schedules", "20"]
    assert main([*arguments, "--redis", redis_url]) == 1
    assert "known" not in capsys.readouterr().out
    assert main([*arguments, "--redis", redis_url]) == 1
    assert "0 schedules" in (printed := capsys.readouterr().out)
    assert "the schedule that was known before" in printed
    # A directory beside it keeps what it finds for itself too; the server is named by the environment.
    monkeypatch.setenv(REDIS_VARIABLE, redis_url)
    assert main([*arguments, "--examples", str(tmp_path / "examples")]) == 1
    assert "known before" in capsys.readouterr().out
    monkeypatch.delenv(REDIS_VARIABLE)
    assert main(arguments) == 1
    assert "known" not in capsys.readouterr().out


def test_examples_of_tests_go_to_the_server_and_to_a_directory(redis_url, tmp_path):
    def failing(database):
        seen = []

        @settings(database=database, max_examples=200, deadline=None, derandomize=False)
        @given(st.integers(0, 10**9))
        def check(number):
            seen.append(number)
            assert number < 1000

        with pytest.raises(AssertionError):
            check.hypothesis.inner_test and check()
        return seen

    # One machine finds it, another one, with nothing of its own, begins with it.
    failing(example_database(tmp_path / "one", redis_url))
    assert failing(example_database(None, redis_url))[0] == 1000
    assert failing(DirectoryBasedExampleDatabase(tmp_path / "one"))[0] == 1000
    assert failing(DirectoryBasedExampleDatabase(tmp_path / "other"))[0] != 1000


def test_a_server_that_is_not_there_is_one_line(capsys):
    for url in ("redis://127.0.0.1:9/0", "http://127.0.0.1:9", "nonsense"):
        assert main(["explore", "--scenario", "two-attaches", "--schedules", "1", "--redis", url]) == 2
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 1
        assert "no Redis server at" in error[0]
    with pytest.raises(TrampolineError, match="neither"):
        example_database(None)
