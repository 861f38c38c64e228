"""Calls in memory images of real kernels: value, total and order of functions as QEMU executed them."""

import json
from functools import cache

import pytest

from emu.vmlinux.memory_image import MemoryImage
from real_cores import CORES, HOW

_EXPECTED = sorted((CORES / "expected").glob("*.json")) if (CORES / "expected").is_dir() else []
_CALLS = [(path, index) for path in _EXPECTED for index in range(len(json.loads(path.read_text())["calls"]))]


@cache
def _opened(path):
    return MemoryImage(path)


@pytest.mark.skipif(not _CALLS, reason=HOW)
@pytest.mark.parametrize(("path", "index"), _CALLS, ids=[f"{path.stem}-{index}" for path, index in _CALLS])
def test_a_call_gives_the_recorded_value_counts_and_order(path, index):
    expected = json.loads(path.read_text())
    call = expected["calls"][index]
    image = _opened(CORES / "mini" / expected["core"])
    arguments = [a if isinstance(a, int) or a == "current" else "zero:64" for a in call["args"]]
    run = image.call(call["call"], *arguments)
    assert image.value(call["call"], run) == call["ret"]
    assert run.instructions == call["total"]
    assert [list(one) for one in run.by_function] == call["order"]
    assert (run.in_body, run.in_programs, run.way_in) == (call["body"], call["prog"], call["T"])
    assert run.unbalanced_returns == call["unbalanced"]


@pytest.fixture(params=[path.stem for path in _EXPECTED] or [None])
def mini(request, cores):
    if request.param is None:
        pytest.skip(HOW)
    return _opened(CORES / "mini" / f"{request.param}.core.xz")


def test_the_same_call_gives_the_same_run_whatever_ran_before(mini):
    first = mini.call("bpf_fentry_test1", 1)
    mini.call("int_sqrt", 10_000)
    again = mini.call("bpf_fentry_test1", 1)
    assert again.program_counters == first.program_counters
    assert again.rax == first.rax


def test_a_call_that_is_not_counted_gives_the_same_value(mini):
    assert mini.call("int_sqrt", 144, count=False).rax == 12
    assert mini.call("int_sqrt", 144, count=False).program_counters == []


def test_trampolines_name_their_function_and_program_where_the_links_are_not_in_the_dump(mini):
    found = {(one.function, one.program.name) for one in mini.attachments()}
    assert ("bpf_fentry_test1", "h5_0_fentry") in found
    assert ("bpf_fentry_test7", "h5_1_fexit") in found
    assert any(gap.startswith("links: ") for gap in mini.gaps)
