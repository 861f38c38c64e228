"""What schedules have covered, held against what the code says."""

import pytest

from emu.host import hook_code
from emu.schedule.coverage import CoverageWatch
from emu.schedule.schedulers.dfs import Exhaustive
from emu.schedule.schedulers.pct import Pct
from emu.schedule.schedulers.replay import Replay


@pytest.fixture(params=["native", "python"])
def watched(request, lab, monkeypatch):
    """A laboratory, and what looks at its schedules: by hooks in machine code, and by the callbacks in their place."""
    if request.param == "python":
        monkeypatch.setattr(hook_code, "native_hooks", lambda: None)

    def make(vcpus):
        made = lab(vcpus=vcpus)
        return made, CoverageWatch(made.world)

    return make


def run(lab, watch, scheduler, operations=()):
    """Every schedule of a scheduler; what they covered."""
    begin = lab.world.begin
    lab.world.begin = lambda actors, invariants: begin(actors, [watch, *invariants])
    lab.all(scheduler, operations)
    return watch.take()


def places(lab, name, *offsets):
    start = lab.kernel.kallsyms.address(name)
    return [start + offset for offset in offsets]


def test_edges_are_pairs_of_visible_instructions(watched):
    lab, watch = watched(1)
    kernel = lab.kernel
    pointer = kernel.slab.alloc(16, "object")
    kernel.machine.write_u64(pointer, pointer)
    lab.task("reads", pointer)
    lab.open()
    found = run(lab, watch, Replay((), strict=False))
    # mov rax, [rdi]; mov rdx, [rax]; mov eax, edx; ret
    first, second = places(lab, "reads", 0, 3)
    assert found.edges == {(0, first), (first, second)}
    assert found.pairs == set()
    assert watch.take().edges == set()


def test_two_cpus_that_add_to_one_word_clash_in_three_ways(watched):
    lab, watch = watched(2)
    word = lab.kernel.module_data(8, 8)
    for cpu in range(2):
        lab.task("adds", word, cpus=(cpu,))
    lab.open()
    found = run(lab, watch, Exhaustive())
    # mov eax, [rdi]; add eax, 1; mov [rdi], eax; ret
    load, store = "adds+0x0", "adds+0x5"
    assert found.pairs == {(load, store), (store, load), (store, store)}
    # One after the other, nobody overwrites what only another has read.
    one = run(lab, watch, Replay((), strict=False))
    assert one.pairs == {(store, load), (store, store)}


def test_memory_of_ones_own_does_not_clash(watched):
    lab, watch = watched(2)
    words = [lab.kernel.module_data(8, 8) for _ in range(2)]
    for cpu, word in enumerate(words):
        lab.task("adds", word, cpus=(cpu,))
    lab.open()
    assert run(lab, watch, Exhaustive()).pairs == set()


def test_operations_clash_in_locks_stores_and_text(watched):
    lab, watch = watched(1)
    kernel = lab.kernel
    pointer = kernel.module_data(8, 8)
    kernel.machine.write_u64(pointer, pointer)
    lab.task("reads", pointer)
    lab.open()

    def stores():
        with kernel.ftrace.ftrace_lock:
            kernel.machine.write_u64(pointer, pointer)

    def locks():
        with kernel.ftrace.ftrace_lock:
            pass

    found = run(lab, watch, Exhaustive(), [stores, locks])
    parts = {tuple(place.rpartition(":")[0].rpartition(".")[2] or place for place in pair) for pair in found.pairs}
    assert {("stores", "locks"), ("locks", "stores"), ("reads+0x0", "stores"), ("stores", "reads+0x0")} <= parts


def test_a_patch_clashes_with_who_fetches_it(watched):
    lab, watch = watched(1)
    lab.task("calls")
    lab.open()
    found = run(lab, watch, Exhaustive(), [lab.patch])
    guest = {place for pair in found.pairs for place in pair if place.startswith("traced+")}
    assert guest
    assert any("TextPoke" in before and after in guest for before, after in found.pairs)
    assert any(before in guest and "TextPoke" in after for before, after in found.pairs)


def test_coverage_changes_no_schedule(lab):
    texts = []
    for covered in (False, True):
        made = lab(vcpus=2)
        made.task("calls", cpus=(0,))
        made.task("calls", cpus=(1,))
        watch = CoverageWatch(made.world) if covered else None
        made.open()
        begin = made.world.begin
        extra = [watch] if watch else []
        made.world.begin = lambda actors, invariants, begin=begin, extra=extra: begin(actors, [*extra, *invariants])
        scheduler, found = Pct(4), []
        for _ in range(40):
            scheduler.begin()
            outcome = made.run(scheduler, [made.patch])
            scheduler.end(outcome)
            found.append(outcome.text)
        texts.append(found)
    assert texts[0] == texts[1]
