"""Campaigns on a cluster: worker processes on loopback, one of which is killed midway."""

import os
import signal
import sys

import pytest

pytest.importorskip("distributed")

from distributed import LocalCluster

from trampoline.bpf.errors import KernelError
from trampoline.tools.cli import main
from trampoline.tools.explore.campaign import run_campaign
from trampoline.tools.explore.chunk import CHUNK, Work, close_session
from trampoline.tools.explore.cluster import Cluster
from trampoline.tools.explore.workers import ThisProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local_cluster():
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(local_cluster):
    workers = Cluster(local_cluster.scheduler_address)
    yield workers
    workers.close()
    close_session()


def test_no_chunk_is_lost_or_counted_twice_when_a_worker_is_killed(local_cluster, cluster):
    work = Work("attach-during-call", "per-function", seed=2, coverage=10)
    killed = []

    def kill(tally):
        if tally.chunks and not killed:
            # One that has chunks: every worker has, as two are under way for each.
            address, keys = next((address, keys) for address, keys in cluster._client.processing().items() if keys)
            nanny = next(nanny for nanny in local_cluster.workers.values() if nanny.worker_address == address)
            os.kill(nanny.pid, signal.SIGKILL)
            killed.append(keys)

    there = run_campaign(work, cluster, schedules=3 * CHUNK + 20, progress=kill)
    assert killed
    here = run_campaign(work, ThisProcess(), schedules=3 * CHUNK + 20)
    assert there.chunks == here.chunks == set(range(4))
    assert there.count == here.count
    assert there.schedules == 3 * CHUNK + 20


def test_what_breaks_on_a_cluster_is_found_and_what_is_refused_said(cluster, monkeypatch):
    # Making it small is the same everywhere, and takes time.
    monkeypatch.setattr("trampoline.tools.explore.campaign._found", lambda work, text, number: (text, number))
    work = Work("livepatch-meets-fexit", "tracing-multi-v2", coverage=0)
    tally = run_campaign(work, cluster, schedules=2 * CHUNK)
    here = run_campaign(work, ThisProcess(), schedules=2 * CHUNK)
    assert tally.found == here.found
    assert (tally.schedules, tally.chunks) == (here.schedules, {0})
    with pytest.raises(KernelError, match="no padding"):
        run_campaign(Work("attach-during-call", "tracing-multi-v1", flavour="6.1"), cluster, schedules=CHUNK)


def test_time_gives_up_what_is_under_way(cluster):
    work = Work("two-attaches", "batched", coverage=0)
    tally = run_campaign(work, cluster, seconds=1.0)
    assert tally.schedules % CHUNK == 0
    assert len(tally.chunks) == tally.schedules // CHUNK
    assert not tally.exhausted
    assert run_campaign(work, cluster, schedules=30).schedules == 30


def test_a_scheduler_that_is_not_there_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("trampoline.tools.explore.cluster._ANSWERS", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "tcp://127.0.0.1:notaport"):
        assert main(["explore", "--scenario", "two-attaches", "--schedules", "1", "--dask", address]) == 2
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 1
        assert "no Dask scheduler" in error[0]


def test_without_the_extra_it_says_so(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["explore", "--scenario", "two-attaches", "--schedules", "1", "--dask", "tcp://127.0.0.1:9"]) == 2
    assert "pip install tramplab[campaigns]" in capsys.readouterr().err


