"""What the posted series costs, instruction by instruction, against figures of real kernel objects."""

import pytest

DESIGNS = ("tracing-multi-v2", "tracing-multi-v2-fixed", "tracing-multi-v1")
KINDS = ("fentry_multi", "fexit_multi", "fmod_ret_multi")
COSTS = {
    ("tracing-multi-v2", "fentry_multi"): (123, 2, 67),
    ("tracing-multi-v2", "fexit_multi"): (142, 2, 67),
    ("tracing-multi-v2", "fmod_ret_multi"): (139, 1, 70),
    ("tracing-multi-v2-fixed", "fentry_multi"): (125, 2, 69),
    ("tracing-multi-v2-fixed", "fexit_multi"): (144, 2, 69),
    ("tracing-multi-v2-fixed", "fmod_ret_multi"): (141, 1, 72),
    ("tracing-multi-v1", "fentry_multi"): (139, 0, 89),
    ("tracing-multi-v1", "fexit_multi"): (164, 0, 89),
    ("tracing-multi-v1", "fmod_ret_multi"): (155, 0, 92),
}
"""One program without arguments; more for each argument; more for each program."""
ANCHORS = {
    "tracing-multi-v2": {"fentry_multi": (125, 2, 67), "fexit_multi": (147, 2, 67), "fmod_ret_multi": (141, 1, 71)},
    "tracing-multi-v1": {"fentry_multi": (138, 0, 86), "fexit_multi": (172, 0, 86), "fmod_ret_multi": (162, 0, 89)},
}


def phases(lab, kind, nr_args, programs=1):
    """T by phase, from the site's call until control is back, without traced function and programs."""
    traced = f"tramplab_args{nr_args}"
    for number in range(programs):
        ends = kind == "fmod_ret_multi" and number == programs - 1
        lab.attach_multi(lab.prog(kind, f"mov eax, {int(ends)}\nret"), [traced])
    kernel, found = lab.kernel, {}
    site = kernel.function(traced).site
    for address, executed in lab.call(traced, *range(nr_args)).counts.by_address.items():
        name = kernel.kallsyms.function_name(address)
        if address == site or not (name == traced or name.startswith("bpf_prog_")):
            phase = "site" if address == site else kernel.machine.images.phase(address)
            found[phase] = found.get(phase, 0) + executed
    return found


def cost(*args):
    return sum(phases(*args).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("design", DESIGNS)
def test_instructions_to_the_last_one(make_lab, design, kind):
    base, per_arg, further = COSTS[design, kind]
    for nr_args in range(7):
        assert cost(make_lab("6.12", design=design), kind, nr_args) == base + per_arg * nr_args
    for programs in (2, 5):
        expected = base + per_arg + further * (programs - 1)
        assert cost(make_lab("6.12", design=design), kind, 1, programs) == expected


@pytest.mark.parametrize("design", ANCHORS)
def test_within_a_twentieth_of_the_real_objects(design):
    for kind, (base, per_arg, further) in ANCHORS[design].items():
        ours = COSTS[design, kind]
        for nr_args in range(7):
            assert ours[0] + ours[1] * nr_args == pytest.approx(base + per_arg * nr_args, rel=0.05)
        assert ours[2] == pytest.approx(further, rel=0.05)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_instruction_has_a_phase(make_lab, design):
    known = {"site", "entry", "save", "lookup", "enter", "program", "exit", "origin", "restore", "leave"}
    for kind in KINDS:
        found = phases(make_lab("6.12", design=design), kind, 3, 2)
        assert found.keys() <= known
        assert found["lookup"] in (12, 13)


def test_the_listing_reads_as_it_was_written(make_lab):
    lab = make_lab("6.12", design="tracing-multi-v2-fixed")
    listing = lab.kernel.function("bpf_global_caller_3_run").image.listing()
    for words in ("rcu_dereference(kfunc_mds)", "ctx[-2]: bpf_get_func_ip()", "this_cpu_inc_return(*prog->active)"):
        assert words in listing


def test_the_first_version_costs_the_same_for_every_argument_count(make_lab):
    assert {cost(make_lab("6.12", design="tracing-multi-v1"), "fexit_multi", nr_args) for nr_args in range(7)} == {164}


@pytest.mark.parametrize(("config", "expected"), [("lazy", (94, 119, 115)), ("none", (88, 107, 103))])
def test_on_kernels_without_migrate_disable_around_readers(make_lab, config, expected):
    assert tuple(cost(make_lab("7.2", config, design="tracing-multi-v2-fixed"), kind, 1) for kind in KINDS) == expected
