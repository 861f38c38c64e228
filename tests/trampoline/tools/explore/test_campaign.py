"""Campaigns: whoever runs their chunks, they do the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emu.schedule.schedulers.spec import scheduler_for
from paths import ROOT
from patience import PATIENCE
from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.tools.cli import main
from trampoline.tools.explore import chunk as chunk_module
from trampoline.tools.explore.campaign import campaign, run_campaign
from trampoline.tools.explore.chunk import CHUNK, Chunk, ChunkResult, Count, Work, close_session, run_chunk
from trampoline.tools.explore.design_name import NamedDesign
from trampoline.tools.explore.schedule_id import ScheduleAddress
from trampoline.tools.explore.session import ScheduleSession
from trampoline.tools.explore.workers import Processes, ThisProcess

pytestmark = pytest.mark.slow

OWN_DESIGN = """
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.designs.design import TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.update.ftrace_sites import SingleOps

def mine(kernel, flavour, boot, programs, metadata):
    assert metadata in (None, "hash")
    images = FunctionImages(kernel, flavour)
    return TrampolineDesign("mine", Trampolines(kernel, flavour, boot, SingleOps(kernel), images))

broken = 5
"""


@pytest.fixture(scope="module")
def processes():
    workers = Processes(2)
    yield workers
    workers.close()


@pytest.fixture(autouse=True)
def no_session_is_kept():
    yield
    close_session()


def same(one, other):
    """Whether two campaigns did the same, whatever time it took."""
    return (one.count, one.chunks, one.exhausted) == (other.count, other.chunks, other.exhausted)


def test_the_same_schedules_are_run_by_one_and_by_several(processes):
    work = Work("attach-during-call", "per-function", seed=5, coverage=2)
    here = run_campaign(work, ThisProcess(), schedules=2 * CHUNK + 30)
    there = run_campaign(work, processes, schedules=2 * CHUNK + 30)
    assert same(here, there)
    assert here.schedules == 2 * CHUNK + 30
    assert here.chunks == {0, 1, 2}
    assert min(len(here.count.coverage.edges), len(here.count.coverage.states), len(here.count.coverage.pairs)) > 1


def test_the_first_failure_is_reported_whoever_found_one_first(processes):
    # Every seed finds it; chunks behind the first that does are not counted.
    work = Work("detach-during-call", "tracing-multi-v2", seed=1)
    here = run_campaign(work, ThisProcess(), schedules=5 * CHUNK)
    there = run_campaign(work, processes, schedules=5 * CHUNK)
    assert here.found.number == there.found.number == here.schedules == 20
    assert here.found.command == there.found.command
    assert same(here, there)


class Backwards(ThisProcess):
    """Has several chunks under way, and finishes the last one first."""

    slots = 4

    def finished(self, timeout):
        self._waiting.reverse()
        try:
            return super().finished(timeout)
        finally:
            self._waiting.reverse()


def test_results_may_come_in_any_order_and_twice(monkeypatch):
    # Chunks 2 and 5 break something, and some are told of twice.
    runs = []

    def made_up(work, chunk, stops):
        runs.append(chunk.number)
        broken = "a" if chunk.number in (2, 5) else None
        return ChunkResult(chunk.number, Count(schedules=chunk.schedules, steps=chunk.number), broken)

    class Twice(Backwards):
        def finished(self, timeout):
            return super().finished(timeout) * 2

    monkeypatch.setattr("trampoline.tools.explore.workers.run_chunk", made_up)
    monkeypatch.setattr("trampoline.tools.explore.campaign._found", lambda work, text, number: None)
    work = Work("attach-during-call", "per-function")
    for workers in (ThisProcess(), Backwards(), Twice()):
        tally = run_campaign(work, workers, schedules=8 * CHUNK)
        assert tally.chunks == {0, 1, 2}
        assert tally.count == Count(schedules=3 * CHUNK, steps=3)
        assert tally.broken
    assert 5 in runs


def test_chunks_are_what_an_undivided_campaign_does():
    """A scheduler that learns nothing makes the same schedules whether they are cut or not."""
    work = Work("two-attaches", "batched", scheduler="random", seed=9, coverage=0)
    parts = [run_chunk(work, Chunk(0, 0, 12)), run_chunk(work, Chunk(1, 12, 12))]
    whole = run_chunk(work, Chunk(0, 0, 24))
    assert sum(part.count.steps for part in parts) == whole.count.steps
    assert [chunk.schedules for chunk in work.chunks(250)] == [100, 100, 50]
    assert [chunk.schedules for chunk in Work("two-attaches", "batched", scheduler="dfs").chunks(250)] == [250]


def test_time_ends_a_campaign(processes):
    work = Work("batch-patching", "batched")
    for workers in (ThisProcess(), processes):
        tally = run_campaign(work, workers, seconds=0.5)
        assert not tally.exhausted
        assert not tally.interrupted
        assert tally.found is None


def test_what_a_worker_refuses_is_raised_here(processes):
    work = Work("attach-during-call", "tracing-multi-v1", flavour="6.1")
    for workers in (ThisProcess(), processes):
        with pytest.raises(KernelError, match="no padding") as caught:
            run_campaign(work, workers, schedules=10)
        assert caught.value.errno
    # The workers are as good as before.
    assert run_campaign(Work("two-attaches", "batched"), processes, schedules=4).schedules == 4


def test_a_search_without_chance_ends_when_all_are_done():
    tally = campaign("attach-during-call", "per-function", scheduler="delays:2", jobs=2, seconds=60.0)
    assert tally.exhausted
    assert tally.found is None
    assert tally.schedules > 20


# Designs of one's own -----------------------------------------------------------------------------------------------


def test_a_design_of_ones_own_is_explored_in_every_process_and_replayed(tmp_path, processes):
    path = tmp_path / "own.py"
    path.write_text(OWN_DESIGN)
    work = Work("modify-during-call", f"{path}:mine")
    tally = run_campaign(work, processes, schedules=20)
    assert tally.schedules == 20
    assert tally.found is None
    with ScheduleSession("modify-during-call", f"{path}:mine+hash") as session:
        scheduler = scheduler_for("pct:3", 1)
        scheduler.begin()
        outcome = session.run(scheduler)
        address = str(session.address_of(outcome))
    assert ScheduleAddress.parse(address).design == f"{path}:mine+hash"
    assert main(["replay", address]) == 0


def test_a_factory_is_named_by_where_it_is():
    from trampoline.designs import DESIGNS
    from trampoline.designs.tracing_multi import tracing_multi_v2

    assert NamedDesign.of(DESIGNS["batched"]) == NamedDesign.of("batched")
    factory = DESIGNS["batched"].make
    named = NamedDesign.of(factory)
    assert named.text == "trampoline.designs.per_function:_batched"
    assert NamedDesign.of(named.text).make is factory
    of_info = NamedDesign.of("trampoline.designs.specialised:SPECIALISED+hash")
    assert (of_info.make, of_info.found_by) == (DESIGNS["specialised"], "hash")
    with ScheduleSession("attach-during-call", tracing_multi_v2("tracing-multi-v2")) as session:
        assert session.run(scheduler_for("pct:3", 1)).violation is None


@pytest.mark.parametrize(
    ("design", "what"),
    [
        ("nonsense", "no 'nonsense'"),
        ("specialised+", "no metadata back end"),
        ("no.such.module:mine", "cannot be imported"),
        ("no/such/file.py:mine", "cannot be imported"),
        ("{path}:missing", "no DesignInfo or factory 'missing'"),
        ("{path}:broken", "no DesignInfo or factory 'broken'"),
        ("specialised+nonsense", "no metadata 'nonsense'"),
    ],
)
def test_a_design_that_can_not_be_had_is_refused(tmp_path, capsys, design, what):
    path = tmp_path / "own.py"
    path.write_text(OWN_DESIGN)
    arguments = ["explore", "--scenario", "two-attaches", "--schedules", "1", "--design", design.format(path=path)]
    assert main(arguments) == 2
    assert what in capsys.readouterr().err


def test_specialised_with_a_hash_is_resized_under_its_readers():
    tally = campaign("resize-during-lookup", "specialised+hash", seed=2, schedules=60, coverage=1)
    assert tally.found is None
    clashes = [" ".join(pair) for pair in tally.count.coverage.pairs]
    assert any(clash.startswith("HashTable._publish") and " tramplab_caller" in clash for clash in clashes)
    assert ("waits for rcu_tasks: HashTable._resize_relinking", "in a call") in tally.count.coverage.states


# The command --------------------------------------------------------------------------------------------------------


def test_the_command_gives_its_summary_as_json(capsys):
    arguments = [
        "explore",
        "--scenario",
        "livepatch-meets-fexit",
        "--design",
        "tracing-multi-v2",
        "--schedules",
        "5",
        "--json",
    ]
    assert main([*arguments, "--coverage", "1"]) == 1
    record = json.loads(capsys.readouterr().out)["campaigns"][0]
    assert record["found"]["violation"].startswith("Oops")
    assert record["found"]["replay"].startswith("livepatch-meets-fexit/tracing-multi-v2/6.12/voluntary/")
    assert record["coverage"]["edges"] > 0
    assert record["schedules"] == record["found"]["schedule"]


@pytest.mark.parametrize(
    "wrong",
    [["--jobs", "0"], ["--jobs", "x"], ["--schedules", "-1"], ["--coverage", "-1"], ["--budget", "0s"],
     ["--dask", "tcp://127.0.0.1:9", "--jobs", "2"],
     ["--design", "per-function", "--scenario", "resize-during-lookup"]],
)  # fmt: skip
def test_wrong_usage_is_one_line(wrong, capsys):
    assert main(["explore", "--scenario", "two-attaches", *wrong]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_ends_every_process_with_a_summary():
    command = [sys.executable, "-m", "trampoline", "explore", "--scenario", "attach-during-call", "--design",
               "per-function", "--budget", "60m", "--jobs", "2"]  # fmt: skip
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        workers = []
        until = time.monotonic() + PATIENCE
        # More CPU time than a worker needs to start.
        while time.monotonic() < until and sum(cpu_seconds(child) > 3 for child in workers) < 2:
            time.sleep(0.1)
            workers = children(running.pid)
        # As the terminal does it: to all at once.
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode == 130
    assert "interrupted: nothing broke" in out
    assert int(out.split(" schedules")[0].split()[-1]) > 0
    assert err == ""
    until = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{child}").exists() for child in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in workers)


def test_a_worker_that_dies_is_an_error():
    workers = Processes(1)
    try:

        def kill(tally):
            for process in list(workers._pool._processes.values()):
                os.kill(process.pid, signal.SIGKILL)

        with pytest.raises(TrampolineError, match="worker process has died"):
            run_campaign(Work("two-attaches", "batched"), workers, schedules=9 * CHUNK, progress=kill)
    finally:
        workers.close()


def test_ctrl_c_in_one_process_counts_what_was_done(monkeypatch):
    whole = chunk_module.outcomes

    def interrupted(session, scheduler, schedules, stops):
        for number, outcome in enumerate(whole(session, scheduler, schedules, stops)):
            yield outcome
            if number == 6:
                raise KeyboardInterrupt

    monkeypatch.setattr(chunk_module, "outcomes", interrupted)
    work = Work("attach-during-call", "per-function", coverage=1)
    tally = run_campaign(work, ThisProcess(), schedules=5 * CHUNK)
    assert (tally.schedules, tally.interrupted, tally.found) == (7, True, None)
    assert tally.count.coverage.edges
    # The session that was interrupted is as good as new.
    monkeypatch.undo()
    again = run_campaign(work, ThisProcess(), schedules=7)
    assert again.count == tally.count
