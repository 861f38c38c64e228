"""Direct callers of many sites: each rule and error code of the API, publication, rollback, one pass a batch."""

import pytest

from emu.errors import GuestFault
from emu.kernel.errors import KernelError
from emu.kernel.ftrace.hashes import hash_bytes, size_bits
from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.ftrace.records import ftrace_jmp_set
from emu.kernel.process_context import PointKind
from emu.kernel.rcu import RcuFlavour
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from refusals import errno_of, refused

EAGAIN, EINVAL, EBUSY, ENOENT, ENOMEM = 11, 22, 16, 2, 12
NAMES = tuple(f"bpf_fentry_test{number}" for number in (1, 2, 7, 10))


@pytest.fixture
def ftrace(kernel):
    return kernel.ftrace


@pytest.fixture
def sites(kernel):
    return [kernel.function(name).site for name in NAMES]


@pytest.fixture
def direct(kernel):
    """Four addresses: number n sets the first argument to 100 * (n + 1)."""
    made = kernel.add_functions(
        *(FunctionText(f"direct{n}", f"mov edi, {100 * (n + 1)}\nret", traceable=False) for n in range(4))
    )
    return [function.address for function in made]


@pytest.fixture
def listed(kernel, sites):
    """Makes the list function run on all sites."""

    def make():
        ops = FtraceOps("other", "ftrace_stub", filter=set(sites))
        kernel.ftrace.register_ftrace_function(ops)
        return ops

    return make


def state(kernel):
    kernel.rcu.settle()
    text = {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()}
    return (
        text, dict(kernel.execmem.images), sorted(kernel.slab.objects.values()), len(kernel.kallsyms),
        kernel.ftrace.ops, dict(kernel.ftrace.direct_functions),
        {ip: record.flags for ip, record in kernel.ftrace.records.items()},
    )  # fmt: skip


def values(kernel):
    """What the four functions return for 1 and, where there is a second argument, 0."""
    return [kernel.call(name, 1, 0).value for name in NAMES]


UNTOUCHED = [2, 1, 1, 1]


# One address for all sites ------------------------------------------------------------------------------------------


def test_an_ops_in_use(kernel, ftrace, direct, sites):
    def fresh(**fields):
        return FtraceOps("fresh", filter={sites[0]}, **fields)

    before = state(kernel)
    for ops in (fresh(func="ftrace_stub"), fresh(trampoline=direct[0]), FtraceOps("no site")):
        refused(EINVAL, ftrace.register_ftrace_direct, ops, direct[0])
    # Neither a direct caller that is not registered, nor a registered user that is none.
    traces = FtraceOps("traces", "ftrace_stub", filter={sites[0]})
    ftrace.register_ftrace_function(traces)
    for ops in (fresh(), traces):
        refused(EINVAL, ftrace.modify_ftrace_direct, ops, direct[0])
        refused(EINVAL, ftrace.unregister_ftrace_direct, ops, direct[0])
        refused(EINVAL, ftrace.reset_ftrace_direct_ips, ops, sites)
    refused(EINVAL, ftrace.register_ftrace_direct, traces, direct[0])
    ftrace.unregister_ftrace_function(traces)
    ops = fresh()
    ftrace.register_ftrace_direct(ops, direct[0])
    refused(EINVAL, ftrace.register_ftrace_direct, ops, direct[0])
    refused(EINVAL, ftrace.unregister_ftrace_direct, ops, direct[1])
    ftrace.unregister_ftrace_direct(ops, direct[0], free_filters=True)
    assert state(kernel) == before


def test_modify_leaves_no_moment_without_a_direct_caller(kernel, direct, sites):
    ops = FtraceOps("direct", filter=set(sites))
    kernel.ftrace.register_ftrace_direct(ops, direct[0])
    operation = kernel.process.start(lambda: kernel.ftrace.modify_ftrace_direct(ops, direct[1]))
    seen = []
    while not operation.done:
        operation.step()
        seen.append(tuple(values(kernel)))
    assert seen[0] == (101, 100, 100, 100)
    assert seen[-1] == (201, 200, 200, 200)
    assert set(seen) == {seen[0], seen[-1]}


def test_modify_goes_through_the_stub(kernel, direct, sites):
    ops = FtraceOps("direct", filter=set(sites))
    kernel.ftrace.register_ftrace_direct(ops, direct[0])
    before = kernel.text_poke.ipis
    kernel.ftrace.modify_ftrace_direct(ops, ftrace_jmp_set(direct[1]))
    assert kernel.text_poke.ipis - before == 6
    kernel.rcu.settle()
    assert kernel.slab.objects.keys().isdisjoint({ops.address, ops.filter_hash} - {0})
    assert ops.address == 0
    kernel.ftrace.unregister_ftrace_direct(ops, ftrace_jmp_set(direct[1]))
    assert values(kernel) == UNTOUCHED


def test_reset_gives_an_ops_other_sites(kernel, ftrace, direct, sites):
    before = state(kernel)
    ops = FtraceOps("direct", filter=set(sites[:2]))
    ftrace.register_ftrace_direct(ops, direct[0])
    functions = [kernel.function(name).address for name in NAMES[1:3]]
    ftrace.reset_ftrace_direct_ips(ops, functions)
    assert values(kernel) == [2, 100, 100, 1]
    assert ftrace.direct_functions == dict.fromkeys(sites[1:3], direct[0])
    ftrace.unregister_ftrace_direct(ops, direct[0], free_filters=True)
    assert state(kernel) == before


def test_reset_refuses(kernel, ftrace, direct, sites):
    ops, other = FtraceOps("direct", filter=set(sites[:1])), FtraceOps("other", filter=set(sites[1:2]))
    refused(EINVAL, ftrace.reset_ftrace_direct_ips, ops, sites)
    ftrace.register_ftrace_direct(ops, direct[0])
    ftrace.register_ftrace_direct(other, direct[1])
    before = state(kernel)
    refused(ENOENT, ftrace.reset_ftrace_direct_ips, ops, [sites[2], kernel.kallsyms.address("tramplab_notrace")])
    refused(EBUSY, ftrace.reset_ftrace_direct_ips, ops, sites)
    for kind in (PointKind.ALLOC, PointKind.PATCH):
        with kernel.process.fail_at(kind, 2, lambda what: KernelError(ENOMEM, what)):
            refused(ENOMEM, ftrace.reset_ftrace_direct_ips, ops, sites[2:])
    assert state(kernel) == before


# An address for each site -------------------------------------------------------------------------------------------


def test_add_mod_del(kernel, ftrace, direct, sites):
    before = state(kernel)
    ops = FtraceOps("single")
    ftrace.update_ftrace_direct_add(ops, dict(zip(sites[:3], direct[:3], strict=True)))
    assert values(kernel) == [101, 200, 300, 1]
    ftrace.update_ftrace_direct_add(ops, {sites[3]: direct[3]})
    assert values(kernel) == [101, 200, 300, 400]
    ftrace.update_ftrace_direct_mod(ops, {sites[0]: direct[3], sites[3]: direct[0]})
    assert values(kernel) == [401, 200, 300, 100]
    ftrace.update_ftrace_direct_del(ops, {sites[1]: direct[1], sites[2]: direct[2]})
    assert values(kernel) == [401, 1, 1, 100]
    ftrace.update_ftrace_direct_del(ops, {sites[0]: direct[3], sites[3]: direct[0]})
    assert (values(kernel), ops.enabled, ops.filter, ops.flags) == (UNTOUCHED, False, set(), 0)
    assert state(kernel) == before
    # It can be used again.
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0]})
    assert values(kernel) == [101, *UNTOUCHED[1:]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_through_the_list_function_each_site_finds_its_own(kernel, ftrace, direct, sites, listed, when):
    before = state(kernel)
    if when == "before":
        other = listed()
    ops = FtraceOps("single")
    ftrace.update_ftrace_direct_add(ops, dict(zip(sites[:2], direct[:2], strict=True)))
    ftrace.update_ftrace_direct_add(ops, {sites[2]: direct[2]})
    if when == "after":
        other = listed()
    assert values(kernel) == [101, 200, 300, 1]
    ftrace.update_ftrace_direct_mod(ops, {sites[1]: direct[3]})
    assert values(kernel) == [101, 400, 300, 1]
    ftrace.update_ftrace_direct_del(ops, {sites[0]: direct[0]})
    assert values(kernel) == [2, 400, 300, 1]
    ftrace.unregister_ftrace_function(other)
    assert values(kernel) == [2, 400, 300, 1]
    ftrace.update_ftrace_direct_del(ops, {sites[1]: direct[3], sites[2]: direct[2]})
    assert state(kernel) == before


def test_add_refuses(kernel, ftrace, direct, sites):
    ops = FtraceOps("single")
    refused(EINVAL, ftrace.update_ftrace_direct_add, ops, {})
    refused(EINVAL, ftrace.update_ftrace_direct_add, ops, {kernel.kallsyms.address("tramplab_notrace"): direct[0]})
    refused(EINVAL, ftrace.update_ftrace_direct_add, FtraceOps("has a func", "ftrace_stub"), {sites[0]: direct[0]})
    foreign = FtraceOps("plain", "ftrace_stub", filter={sites[3]})
    ftrace.register_ftrace_function(foreign)
    refused(EINVAL, ftrace.update_ftrace_direct_add, foreign, {sites[0]: direct[0]})
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0]})
    before = state(kernel)
    # Unlike register_ftrace_direct(), which says -EBUSY.
    refused(EINVAL, ftrace.update_ftrace_direct_add, ops, {sites[0]: direct[0], sites[1]: direct[1]})
    refused(EBUSY, ftrace.register_ftrace_direct, FtraceOps("other", filter={sites[0]}), direct[1])
    assert state(kernel) == before


def test_del_refuses(kernel, ftrace, direct, sites):
    ops, other = FtraceOps("single"), FtraceOps("other")
    refused(EINVAL, ftrace.update_ftrace_direct_del, ops, {sites[0]: direct[0]})
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0], sites[1]: direct[1]})
    ftrace.update_ftrace_direct_add(other, {sites[2]: direct[2]})
    before = state(kernel)
    refused(EINVAL, ftrace.update_ftrace_direct_del, ops, {})
    refused(EINVAL, ftrace.update_ftrace_direct_del, ops, {sites[0]: direct[0], sites[1]: direct[0]})
    refused(EINVAL, ftrace.update_ftrace_direct_del, ops, {sites[0]: direct[0], sites[3]: direct[3]})
    refused(EINVAL, ftrace.update_ftrace_direct_del, ops, {sites[0]: direct[0], sites[2]: direct[2]})
    assert state(kernel) == before


def test_add_and_mod_negotiate_with_livepatch(kernel, ftrace, direct, sites):
    answers = []

    def ops_func(ops, ip, cmd):
        if answers:
            raise KernelError(answers.pop(), "asked to share")

    LivePatch(kernel, NAMES[0], direct[3]).enable()
    entries, before = dict(zip(sites[:2], direct, strict=False)), state(kernel)
    refused(EBUSY, ftrace.update_ftrace_direct_add, FtraceOps("can't be asked"), entries)
    ops = FtraceOps("direct_ops", ops_func=ops_func)
    answers.append(EAGAIN)
    refused(EAGAIN, ftrace.update_ftrace_direct_add, ops, entries)
    assert state(kernel) == before
    ftrace.update_ftrace_direct_add(ops, entries)
    during = state(kernel)
    answers.append(EAGAIN)
    refused(EAGAIN, ftrace.update_ftrace_direct_mod, ops, {sites[0]: direct[2]})
    assert state(kernel) == during
    ftrace.update_ftrace_direct_del(ops, entries)
    assert state(kernel) == before


def test_mod_refuses_or_passes_over(kernel, ftrace, direct, sites):
    ops, other = FtraceOps("single"), FtraceOps("other")
    refused(EINVAL, ftrace.update_ftrace_direct_mod, ops, {sites[0]: direct[0]})
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0]})
    ftrace.update_ftrace_direct_add(other, {sites[1]: direct[1]})
    before = state(kernel)
    refused(EINVAL, ftrace.update_ftrace_direct_mod, ops, {})
    ftrace.update_ftrace_direct_mod(ops, {sites[1]: direct[3], sites[2]: direct[3]})
    assert state(kernel) == before
    with ftrace.direct_mutex:
        ftrace.update_ftrace_direct_mod(ops, {sites[0]: direct[2], sites[2]: direct[3]}, lock_direct_mutex=False)
    assert values(kernel) == [301, 200, 1, 1]


@pytest.mark.parametrize("kind", [PointKind.ALLOC, PointKind.PATCH])
@pytest.mark.parametrize("with_others", [False, True])
def test_failing_at_every_step_leaves_everything_as_it_was(kernel, ftrace, direct, sites, listed, kind, with_others):
    if with_others:
        listed()
    ops = FtraceOps("single")
    pairs = dict(zip(sites, direct, strict=True))
    first, rest = dict([*pairs.items()][:1]), dict([*pairs.items()][1:])
    changed = {sites[1]: direct[0], sites[2]: direct[0]}
    steps = [
        lambda: ftrace.update_ftrace_direct_add(ops, first),
        lambda: ftrace.update_ftrace_direct_add(ops, rest),
        lambda: ftrace.update_ftrace_direct_mod(ops, changed),
        lambda: ftrace.update_ftrace_direct_del(ops, first | {sites[3]: direct[3]}),
        lambda: ftrace.update_ftrace_direct_del(ops, changed),
    ]
    start, failures = state(kernel), 0
    for step in steps:
        before, returned, nth = state(kernel), values(kernel), 1
        while True:
            with kernel.process.fail_at(kind, nth, lambda what: KernelError(ENOMEM, what)):
                failed = errno_of(step)
            if not failed:
                break
            assert (failed, state(kernel), values(kernel)) == (ENOMEM, before, returned)
            nth += 1
        failures += nth - 1
    assert failures > len(steps)
    assert state(kernel) == start


# Publication and lifetimes ------------------------------------------------------------------------------------------


def test_a_new_address_is_published_before_the_text_and_taken_back_after_it(kernel, ftrace, direct, sites, listed):
    listed()
    ops = FtraceOps("single")
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0]})
    pairs = {sites[1]: direct[1]}
    for operation in (ftrace.update_ftrace_direct_add, ftrace.update_ftrace_direct_del):
        running = kernel.process.start(lambda operation=operation: operation(ops, pairs))
        while not running.done:
            running.step()
            if kernel.ftrace.records[sites[1]].address == kernel.kallsyms.address("ftrace_regs_caller"):
                # Its text leads to the direct caller, so the address must be there.
                assert kernel.ftrace.direct_functions.get(sites[1]) == direct[1]
            assert kernel.call(NAMES[1], 1, 0).value in (1, 200)
    assert kernel.call(NAMES[1], 1, 0).value == 1


def test_a_look_up_under_way_keeps_the_old_hash(boot):
    # d05cb470663a: readers walked a hash that was being edited.
    kernel = boot(vcpus=2)
    made = kernel.add_functions(
        FunctionText("direct_a", "mov edi, 100\nret", traceable=False),
        FunctionText("direct_b", "mov edi, 200\nret", traceable=False),
    )
    first, second = kernel.function("bpf_fentry_test1"), kernel.function("bpf_fentry_test7")
    kernel.ftrace.register_ftrace_function(FtraceOps("other", "ftrace_stub", filter={first.site, second.site}))
    ops = FtraceOps("single")
    kernel.ftrace.update_ftrace_direct_add(ops, {first.site: made[0].address})
    kernel.rcu.settle()
    vcpu = kernel.machine.vcpus[1]
    lookup = kernel.function("__ftrace_lookup_ip")
    task = kernel.task("looks up", first.address, 1)
    vcpu.run(task, preempt_after=1)
    # The second look-up is the direct caller's; stop once it has the hash in a register.
    for _ in range(2):
        while task.register("rip") != lookup.address:
            vcpu.run(task, preempt_after=1)
        vcpu.run(task, preempt_after=1)
    old = [address for address, name in kernel.slab.objects.items() if name == "direct_functions"]
    kernel.ftrace.update_ftrace_direct_add(ops, {second.site: made[1].address})
    kernel.rcu.settle()
    assert old[0] in kernel.slab.objects
    vcpu.run(task)
    assert task.value == 101
    kernel.rcu.settle()
    assert old[0] not in kernel.slab.objects


@pytest.mark.parametrize("count", [1, 2, 50])
def test_grace_periods_of_a_batch_do_not_depend_on_its_size(boot, count):
    kernel = boot()
    made = kernel.add_functions(*(FunctionText(f"f{n}", "ret") for n in range(count)), FunctionText("d", "ret"))
    direct = made[-1].address
    ops = FtraceOps("single")
    kernel.ftrace.update_ftrace_direct_add(ops, {kernel.function("bpf_fentry_test1").site: direct})
    kernel.rcu.settle()
    before = kernel.rcu.completed(RcuFlavour.RCU_TASKS)
    kernel.ftrace.update_ftrace_direct_add(ops, {f.site: direct for f in made[:-1]})
    kernel.ftrace.update_ftrace_direct_del(ops, {f.site: direct for f in made[:-1]})
    kernel.rcu.settle()
    assert kernel.rcu.completed(RcuFlavour.RCU_TASKS) - before == 2


def test_a_batch_is_one_pass_of_full_vectors(boot):
    source = AssemblyFunctions(tuple(FunctionText(f"f{n}", "mov eax, 1\nret") for n in range(600)))
    kernel = boot()
    kernel.add_functions(*source.functions, FunctionText("instead", "mov eax, 9\nret", traceable=False))
    pairs = {kernel.function(f"f{n}").site: ftrace_jmp_set(kernel.kallsyms.address("instead")) for n in range(600)}
    ops = FtraceOps("single")
    updates, ipis, writes = kernel.ftrace.updates, kernel.text_poke.ipis, kernel.text_poke.writes
    kernel.ftrace.update_ftrace_direct_add(ops, pairs)
    # 256, 256 and 88 sites, three phases each.
    assert (kernel.ftrace.updates - updates, kernel.text_poke.ipis - ipis, kernel.text_poke.writes - writes) == (
        1, 9, 1800,
    )  # fmt: skip
    assert {kernel.call(f"f{n}").value for n in range(0, 600, 50)} == {9}
    kernel.ftrace.update_ftrace_direct_del(ops, pairs)
    assert {kernel.call(f"f{n}").value for n in range(0, 600, 50)} == {1}


def test_many_entries_in_the_list_functions_hash(boot):
    kernel = boot()
    kernel.add_functions(*(FunctionText(f"f{n}", "mov eax, edi\nret") for n in range(300)))
    kernel.add_functions(*(FunctionText(f"d{n}", f"mov edi, {n}\nret", traceable=False) for n in range(300)))
    pairs = {kernel.function(f"f{n}").site: kernel.kallsyms.address(f"d{n}") for n in range(300)}
    ops = FtraceOps("single")
    kernel.ftrace.update_ftrace_direct_add(ops, pairs)
    kernel.ftrace.register_ftrace_function(FtraceOps("other", "ftrace_stub", filter=set(pairs)))
    assert [kernel.call(f"f{n}", 7).value for n in range(300)] == list(range(300))


def test_sizes_of_hashes():
    assert [size_bits(count) for count in (0, 1, 2, 3, 4, 1000, 8192, 47814)] == [0, 0, 1, 1, 2, 9, 12, 12]
    assert hash_bytes(0) == 0x30 + 8
    assert hash_bytes(100) == 0x30 + 8 * 64 + 32 * 100


def test_a_site_of_a_direct_caller_does_not_run_into_freed_memory(kernel, ftrace, direct, sites):
    """The list and the hashes are gone once no site needs them; nothing leads there any more."""
    ops = FtraceOps("single")
    ftrace.update_ftrace_direct_add(ops, {sites[0]: direct[0]})
    other = FtraceOps("other", "ftrace_stub", FtraceOpsFlag.SAVE_REGS, filter={sites[0]})
    ftrace.register_ftrace_function(other)
    ftrace.unregister_ftrace_function(other)
    kernel.rcu.settle()
    assert "direct_functions" not in kernel.slab.objects.values()
    assert values(kernel)[0] == 101
    with pytest.raises(GuestFault):
        kernel.call("call_direct_funcs_by_ip", sites[0])


# At once, or point by point -----------------------------------------------------------------------------------------


def run_through(kernel, operation):
    operation()


def step_through(kernel, operation):
    kernel.process.start(operation).finish()


def test_a_batch_that_nobody_watches_is_as_one_that_stops_at_every_point(boot):
    outcomes = []
    for run in (run_through, step_through):
        kernel = boot(vcpus=2)
        sites = [kernel.function(name).site for name in NAMES]
        target = kernel.add_functions(FunctionText("direct", "mov edi, 100\nret", traceable=False))[0].address
        pairs, poke, ops = dict.fromkeys(sites, target), kernel.text_poke, FtraceOps("single")
        counts = []
        for update, entries in (
            (kernel.ftrace.update_ftrace_direct_add, pairs),
            (kernel.ftrace.update_ftrace_direct_mod, dict.fromkeys(sites, ftrace_jmp_set(target))),
            (kernel.ftrace.update_ftrace_direct_del, dict.fromkeys(sites, ftrace_jmp_set(target))),
        ):
            before = poke.writes, poke.ipis, kernel.ftrace.updates
            run(kernel, lambda update=update, ops=ops, entries=entries: update(ops, entries))
            after = poke.writes, poke.ipis, kernel.ftrace.updates
            counts.append(tuple(b - a for a, b in zip(before, after, strict=True)))
            kernel.rcu.settle()
        # Changing addresses is a batch to the stub that calls the list function, and one back.
        assert counts == [(3 * len(sites), 3, 1), (6 * len(sites), 6, 2), (3 * len(sites), 3, 1)]
        outcomes.append((state(kernel), list(kernel.events), counts))
    assert outcomes[0] == outcomes[1]


def test_sites_with_the_same_users_share_them(kernel, ftrace, direct, sites, listed):
    other = listed()
    ops = FtraceOps("single")
    ftrace.update_ftrace_direct_add(ops, dict(zip(sites, direct, strict=True)))
    users = [ftrace.records[site].users for site in sites]
    assert users == [(other, ops)] * len(sites)
    assert len({id(each) for each in users}) == 1
    ftrace.unregister_ftrace_function(other)
    assert [ftrace.records[site].users for site in sites] == [(ops,)] * len(sites)
    assert values(kernel) == [101, 200, 300, 400]
