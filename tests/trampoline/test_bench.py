"""Instruction counts, exactly. They are the product: a change here is a change of what every user measures."""

import pytest

from trampoline.bench import ROWS, anchor, measure
from trampoline.errors import KernelError, TrampolineError

VOLUNTARY = {"fentry": (90, 2), "fexit": (109, 2), "fmodret": (111, 1)}
LAZY = {"fentry": (51, 2), "fexit": (74, 2), "fmodret": (77, 1)}


@pytest.mark.parametrize("nr_args", range(7))
@pytest.mark.parametrize("name", ROWS)
def test_a_real_kernels_figures_are_met_exactly(name, nr_args):
    for flavour, config, known in (("6.12", "voluntary", VOLUNTARY), ("7.2", "lazy", LAZY)):
        base, per_arg = known[name]
        row = measure(name, flavour=flavour, config=config, nr_args=nr_args)
        assert (row.instructions, row.ratio) == (base + per_arg * nr_args, 1.0)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("programs", [2, 5])
def test_further_programs(name, programs):
    further = {"fentry": 80, "fexit": 80, "fmodret": 83}[name]
    row = measure(name, flavour="6.12", config="voluntary", programs=programs)
    assert row.instructions == sum(VOLUNTARY[name]) + further * (programs - 1) == anchor("voluntary", name, 1, programs)
    lazy = measure("fentry", flavour="7.2", config="lazy", programs=programs)
    assert lazy.instructions == 53 + 41 * (programs - 1)


@pytest.mark.parametrize(
    ("flavour", "config", "counts"),
    [
        ("6.1", "voluntary", (92, 111, 112)),
        ("7.2", "voluntary", (93, 110, 112)),
        ("6.1", "lazy", (52, 77, 78)),
        ("6.12", "lazy", (52, 77, 78)),
    ],
)
def test_other_pairings(flavour, config, counts):
    assert tuple(measure(name, flavour=flavour, config=config).instructions for name in ROWS) == counts


@pytest.mark.parametrize(("flavour", "unbalanced"), [("6.1", (0, 1, 1)), ("6.12", (0, 1, 1)), ("7.2", (0, 0, 0))])
def test_jmp_sites_have_no_unbalanced_return(flavour, unbalanced):
    assert tuple(measure(n, flavour=flavour, config="voluntary").unbalanced_returns for n in ROWS) == unbalanced


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("nr_args", [7, 9, 12])
def test_stack_arguments(name, nr_args):
    for flavour in ("6.12", "7.2"):
        row = measure(name, flavour=flavour, config="voluntary", nr_args=nr_args)
        again = measure(name, flavour=flavour, config="voluntary", nr_args=nr_args)
        assert row == again
    six = measure(name, flavour="6.12", config="voluntary", nr_args=6).instructions
    # One on the stack is copied through rax, once for the context and once for the original.
    per_arg = {"fentry": 2, "fexit": 4, "fmodret": 2}[name]
    got = measure(name, flavour="6.12", config="voluntary", nr_args=nr_args).instructions
    assert got == six + per_arg * (nr_args - 6)


@pytest.mark.parametrize("name", ROWS)
def test_full_programs_cost_their_trampoline_the_ip(name):
    plain = measure(name, flavour="6.12", config="voluntary").instructions
    assert measure(name, flavour="6.12", config="voluntary", program="full").instructions == plain + 2


@pytest.mark.parametrize("name", ROWS)
def test_phases_sum_up_to_the_instructions(name):
    row = measure(name, flavour="6.12", config="voluntary", nr_args=3, programs=2)
    assert sum(row.phases.values()) == row.instructions
    assert row.phases["leave"] == (2 if name == "fentry" else 3)


def test_what_cannot_be_measured():
    with pytest.raises(KernelError):
        measure("fentry", flavour="6.1", config="voluntary", nr_args=7)
    for options in ({"nr_args": 13}, {"nr_args": -1}, {"programs": 0}, {"flavour": "5.4"}, {"config": "rt"}):
        with pytest.raises(TrampolineError):
            measure("fentry", **({"flavour": "6.12", "config": "voluntary"} | options))
    with pytest.raises(KernelError):
        measure("fentry", flavour="7.2", config="voluntary", programs=37)
