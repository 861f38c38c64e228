"""Instruction counts, exactly. They are the product: a change here is a change of what every user measures."""

from dataclasses import replace

import pytest
from kernel_releases import RELEASES

from paths import FIXTURES
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.bpf.uapi import AttachType
from trampoline.designs import DESIGNS
from trampoline.lab import Lab
from trampoline.lab.btf_functions import attachable
from trampoline.tools.bench import bench as bench_module
from trampoline.tools.bench.bench import ROWS, bench, measure
from trampoline.tools.bench.reference_figures import anchor

FIXTURES = FIXTURES
CLASSIC = ("per-function", "batched")
VOLUNTARY = {"fentry": (90, 2), "fexit": (109, 2), "fmodret": (111, 1)}
LAZY = {"fentry": (51, 2), "fexit": (74, 2), "fmodret": (77, 1)}
PLAIN = tuple(VOLUNTARY)


@pytest.mark.parametrize("nr_args", range(7))
@pytest.mark.parametrize("name", ROWS)
def test_a_real_kernels_figures_are_met_exactly(name, nr_args):
    for flavour, config, known in (("6.12", "voluntary", VOLUNTARY), ("7.2", "lazy", LAZY)):
        base, per_arg = known[name.split("-")[0]]
        row = measure(name, flavour=flavour, config=config, nr_args=nr_args)
        assert (row.instructions, row.ratio) == (base + per_arg * nr_args, 1.0)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("programs", [2, 5])
def test_further_programs(name, programs):
    further = {"fentry": 80, "fexit": 80, "fmodret": 83}[name]
    row = measure(name, flavour="6.12", config="voluntary", programs=programs)
    assert row.instructions == sum(VOLUNTARY[name]) + further * (programs - 1) == row.anchor
    assert (row.further, row.further_anchor) == (further, further)
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
    assert tuple(measure(name, flavour=flavour, config=config).instructions for name in PLAIN) == counts


@pytest.mark.parametrize(("flavour", "unbalanced"), [("6.1", (0, 1, 1)), ("6.12", (0, 1, 1)), ("7.2", (0, 0, 0))])
def test_jmp_sites_have_no_unbalanced_return(flavour, unbalanced):
    assert tuple(measure(n, flavour=flavour, config="voluntary").unbalanced_returns for n in PLAIN) == unbalanced


@pytest.mark.parametrize("name", PLAIN)
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
    full = measure(name, flavour="6.12", config="voluntary", program="full")
    # Nobody measured it: the figures are those of a program that reads nothing.
    assert (full.instructions, full.anchor, full.ratio) == (plain + 2, None, None)


@pytest.mark.parametrize("name", PLAIN)
def test_phases_sum_up_to_the_instructions(name):
    row = measure(name, flavour="6.12", config="voluntary", nr_args=3, programs=2)
    assert sum(row.phases.values()) == row.instructions
    assert row.phases["leave"] == (2 if name == "fentry" else 3)


def test_what_cannot_be_measured():
    with pytest.raises(KernelError):
        measure("fentry", flavour="6.1", config="voluntary", nr_args=7)
    for options in (
        {"nr_args": 13},
        {"nr_args": -1},
        {"programs": 0},
        {"flavour": "5.4"},
        {"config": "rt"},
        {"design": "fast"},
        {"metadata": "hash"},
        {"program": "empty"},
        {"name": "kprobe"},
    ):
        with pytest.raises(TrampolineError):
            measure(**({"name": "fentry", "flavour": "6.12", "config": "voluntary"} | options))
    with pytest.raises(KernelError):
        measure("fentry", flavour="7.2", config="voluntary", programs=37)


@pytest.mark.parametrize("design", CLASSIC)
@pytest.mark.parametrize("config", ["voluntary", "lazy", "none"])
def test_a_trampoline_a_function_costs_the_same_however_many_it_is_attached_to(design, config):
    for name in PLAIN:
        one, two = (measure(row, flavour="6.12", config=config, design=design) for row in (name, f"{name}-multi"))
        assert (two.kind, two.functions) == (f"{one.kind}_multi", 2)
        assert replace(two, name=one.name, kind=one.kind, functions=1) == one


def test_every_function_of_the_kernel_is_hooked():
    row = measure("fentry-multi-all", flavour="6.12", config="voluntary", design="batched")
    with Lab("6.12") as lab:
        # Without the one that must not be traced.
        assert row.functions == len(lab.population.select(["*"])) - 1 == 27
    assert measure("fentry-multi-all", flavour="6.1", config="voluntary").functions == 20  # six slots at most


def test_every_function_of_a_btf_is_hooked():
    btf = Btf.read(FIXTURES / "btf" / "6.12.btf.xz")
    rows = bench(["6.12"], ["voluntary"], designs=["batched"], btf=btf)
    functions = {row.name: row.functions for row in rows}
    # And the function that is called, which the BTF does not have.
    attached, _ = attachable(RELEASES["6.12"], btf, AttachType.TRACE_FENTRY_MULTI)
    assert functions["fentry-multi-all"] == len(attached) + 1 == 44
    assert (functions["fentry"], functions["fentry-multi"]) == (1, 2)
    assert {row.instructions for row in rows if row.kind.startswith("fentry")} == {92}


def test_rows_of_every_design_and_configuration():
    rows = bench(["6.12"], ["voluntary", "none"], designs=list(DESIGNS))
    assert {(row.design, row.config, row.name) for row in rows} == {
        (design, config, name) for design in DESIGNS for config in ("voluntary", "none") for name in ROWS
    }
    assert all(row.instructions == sum(row.phases.values()) for row in rows if row.error is None)


def test_what_is_refused_is_a_row_while_something_is_not(monkeypatch):
    real = bench_module.measure

    def but_no_fexit(name, **options):
        if name.startswith("fexit"):
            raise KernelError(524, "no fexit")
        return real(name, **options)

    monkeypatch.setattr(bench_module, "measure", but_no_fexit)
    rows = {row.name: row for row in bench(["6.12"], ["voluntary"])}
    assert (rows["fexit"].error, rows["fexit"].instructions, rows["fexit"].further) == ("ENOTSUPP", None, None)
    assert rows["fentry"].error is None
    monkeypatch.undo()
    with pytest.raises(KernelError):
        bench(["6.1"], ["voluntary"], nr_args=7)


def test_no_further_program_where_there_are_as_many_as_it_takes():
    row = measure("fentry", flavour="6.12", config="voluntary", programs=38)
    assert (row.instructions, row.further) == (92 + 37 * 80, None)


def multi_rows(program, **options):
    rows = bench(["7.2"], ["none"], designs=["specialised"], program=program, **options)
    return [(row.name, row.metadata) for row in rows if row.kind.endswith("_multi")], rows


def test_a_choice_of_metadata_is_shown_where_it_is_looked_up():
    names = [name for name in ROWS if "-" in name]
    shown, rows = multi_rows("full")
    assert shown == [(name, metadata) for name in names for metadata in (*DESIGNS["specialised"].metadata, None)]
    assert {row.metadata for row in rows if "-" not in row.name} == {None}
    assert multi_rows("full", metadata="hash")[0] == [(n, metadata) for n in names for metadata in ("hash", None)]
    # Programs that don't read the cookie need no look-up.
    assert multi_rows("plain")[0] == [(name, None) for name in names]


@pytest.mark.parametrize(("design", "metadata"), [("tracing-multi-v2", "hash"), ("tracing-multi-v1", "padding")])
@pytest.mark.parametrize("nr_args", [0, 6])
def test_the_posted_series_looks_metadata_up_at_each_call(design, metadata, nr_args):
    rows = bench(["6.12"], ["voluntary"], designs=[design], nr_args=nr_args)
    assert {row.name: row.metadata for row in rows} == {name: metadata if "-" in name else None for name in ROWS}
    assert all(abs(row.ratio - 1) < 0.1 for row in rows)
    assert bench(["6.12"], ["voluntary"], designs=[design], nr_args=nr_args, metadata=metadata) == rows


def test_a_lookup_costs_more_than_none():
    for name in (name for name in ROWS if "-" in name):
        with_, without = (
            measure(name, flavour="7.2", config="none", design="specialised", program="full", metadata=metadata)
            for metadata in ("padding", None)
        )
        assert with_.instructions > without.instructions


def test_metadata_that_no_design_has():
    for designs in (["specialised", "batched"], ["batched"]):
        with pytest.raises(TrampolineError, match="no metadata 'trie'"):
            bench(["7.2"], ["none"], designs=designs, metadata="trie")


@pytest.mark.parametrize(
    ("name", "row", "instructions", "further"),
    [
        (
            "fentry-multi",
            {"design": "tracing-multi-v2", "config": "voluntary", "metadata": "hash", "nr_args": 6},
            137,
            67,
        ),
        ("fexit-multi", {"design": "tracing-multi-v2", "config": "voluntary", "program": "full"}, 149, 67),
        ("fmodret-multi", {"design": "tracing-multi-v2", "config": "voluntary"}, 142, 71),
        ("fmodret-multi", {"design": "tracing-multi-v1", "config": "voluntary", "nr_args": 5}, 162, 89),
        ("fentry", {"design": "tracing-multi-v1", "config": "voluntary"}, 92, 80),
        ("fentry-multi", {"design": "specialised", "config": "none", "program": "full", "metadata": "padding"}, 29, 17),
        (
            "fexit-multi",
            {"design": "specialised", "config": "voluntary", "program": "full", "metadata": "padding"},
            46,
            None,
        ),
        ("fmodret-multi", {"design": "specialised", "config": "none"}, 21, None),
    ],
)
def test_anchors_of_designs(name, row, instructions, further):
    known = anchor(name, **row)
    assert (known.instructions(row.get("nr_args", 1)), known.further) == (instructions, further)
    assert known.instructions(1, 3) == (known.instructions(1) + 2 * further if further else None)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("fentry-multi", {"design": "tracing-multi-v2", "config": "lazy"}),
        ("fentry-multi", {"design": "tracing-multi-v2", "config": "voluntary", "nr_args": 7}),
        ("fentry-multi", {"design": "specialised", "config": "none", "program": "full", "metadata": "hash"}),
        ("fentry-multi", {"design": "specialised", "config": "none", "program": "full"}),
        ("fentry-multi", {"design": "specialised", "config": "voluntary"}),
        ("fentry", {"design": "generic", "config": "voluntary"}),
        ("fentry", {"design": "batched", "config": "none"}),
    ],
)
def test_no_anchor_where_nobody_measured(name, row):
    assert anchor(name, **row) is None
