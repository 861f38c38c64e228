"""One 5-byte patch against one CPU that calls through it: all interleavings."""

from collections import Counter
from itertools import pairwise

import pytest

from asm.encodings import call_rel32
from emu.schedule.schedulers.bounded import Bounded
from emu.schedule.schedulers.delays import DelayBounded
from emu.schedule.schedulers.dfs import Exhaustive

pytestmark = pytest.mark.slow

ALL, REDUCED = 85, 22
"""Schedules before and after reduction."""


def test_every_interleaving_of_a_patch_and_a_call(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    every, reduced = Exhaustive(reduce=False), Exhaustive()
    before, after = lab.all(every, [lab.patch]), lab.all(reduced, [lab.patch])
    assert (every.schedules, every.pruned) == (ALL, 0)
    assert (reduced.schedules, reduced.pruned) == (REDUCED, 0)
    assert len({outcome.text for outcome, _ in before}) == ALL
    assert not any(outcome.violation for outcome, _ in before + after)
    # The old instruction or the new one, and nothing that full exploration sees is lost.
    assert {values for _, values in before} == {values for _, values in after} == {(1,), (2,)}
    assert {outcome.text for outcome, _ in after} <= {outcome.text for outcome, _ in before}


def test_a_cpu_that_has_not_serialised_executes_old_or_new_bytes(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    texts = [outcome.text for outcome, _ in lab.all(Exhaustive(reduce=False), [lab.patch])]
    assert any("N" in text for text in texts)
    # The int3 is hit, and its entry runs in a step of its own: no interrupt gets in between.
    trapped = [outcome for outcome, _ in lab.all(Exhaustive(), [lab.patch])
               if any(taken.where.kind == "int3 entry" for taken in outcome.taken)]  # fmt: skip
    assert trapped


def test_two_calls_and_two_cpus_stay_right_under_reduction(lab):
    lab = lab(vcpus=2)
    lab.task("calls", cpus=(0,))
    lab.task("calls", cpus=(1,))
    lab.open()
    scheduler = Exhaustive()
    outcomes = lab.all(scheduler, [lab.patch])
    assert not any(outcome.violation for outcome, _ in outcomes)
    assert {values for _, values in outcomes} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert scheduler.schedules < 2000


def test_a_patch_without_int3_is_torn(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    kernel = lab.kernel
    site = kernel.function("traced").site
    new = call_rel32(site, kernel.kallsyms.address("patched_in"))

    def careless():
        from emu.kernel.process_context import PointKind

        with kernel.text_poke.text_mutex:
            for at, text in ((site + 1, new[1:]), (site, new[:1])):
                kernel.process.point(PointKind.TEXT_WRITE, "careless", (at, len(text)))
                kernel.machine.write_text(at, text)
                kernel.process.point(PointKind.IPI, "sync_core on cpu 0", 0)
                kernel.machine.vcpus[0].serialize()

    kinds = Counter(outcome.violation.kind for outcome, _ in lab.all(Exhaustive(), [careless]) if outcome.violation)
    assert kinds["torn instruction"]


def test_reduction_loses_no_final_value(lab):
    """Two increments that are no locked instruction: one of them may be lost."""
    lab = lab(vcpus=2)
    counter = lab.kernel.module_data(8, 8)
    lab.task("adds", counter, cpus=(0,))
    lab.task("adds", counter, cpus=(1,))
    lab.open()

    def values(scheduler):
        found = set()
        while scheduler.begin():
            outcome = lab.run(scheduler)
            scheduler.end(outcome)
            if not outcome.pruned:
                found.add((lab.kernel.machine.read_u32(counter), tuple(call.value for call in lab.calls)))
        return found

    every, reduced = Exhaustive(reduce=False), Exhaustive()
    assert values(every) == values(reduced) == {(2, (1, 2)), (2, (2, 1)), (1, (1, 1))}
    assert reduced.schedules < every.schedules


def test_bounded_preemptions(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    counts = []
    for bound in range(4):
        outcomes = lab.all(Bounded(bound), [lab.patch])
        assert len({outcome.text for outcome, _ in outcomes}) == len(outcomes)
        counts.append(len(outcomes))
    assert counts == sorted(counts)
    assert counts[0] == 2
    assert counts[3] <= ALL


def test_delays_bound_what_is_explored(lab):
    lab = lab()
    lab.task("calls", times=2)
    lab.open()
    found = []
    for delays in range(4):
        scheduler = DelayBounded(delays)
        found.append({outcome.text for outcome, _ in lab.all(scheduler, [lab.patch])})
        assert len(found[-1]) == scheduler.schedules
    # Without a delay everybody goes on until the end, one after the other.
    assert found[0] == {next(text for text in found[0])}
    for fewer, more in pairwise(found):
        assert fewer < more
    # Whoever is not next costs more than one delay: there are fewer schedules than with as many preemptions.
    preempted = {outcome.text for outcome, _ in lab.all(Bounded(2), [lab.patch])}
    assert len(found[2]) < len(preempted)


def test_a_deadlock_takes_one_delay(lab):
    lab = lab()
    lab.task("calls")
    lab.open()
    one, other = lab.kernel.ftrace.ftrace_lock, lab.kernel.ftrace.direct_mutex

    def forwards():
        with one, other:
            pass

    def backwards():
        with other, one:
            pass

    def broken(delays):
        outcomes = [outcome for outcome, _ in lab.all(DelayBounded(delays), [forwards, backwards])]
        return {outcome.violation.kind for outcome in outcomes if outcome.violation}

    assert broken(0) == set()
    assert broken(1) == {"deadlock"}
