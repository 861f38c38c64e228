"""The hunt: quick mutants with a fixed seed, the table, files of mutants, and the control."""

import json
from itertools import islice

import pytest

from paths import ROOT
from trampoline.designs import DESIGNS
from trampoline.tools.cli import main
from trampoline.tools.explore.scenarios import SCENARIOS, applies
from trampoline.tools.mutants.campaign import Hunt, hunt
from trampoline.tools.mutants.catalogue import catalogue, known
from trampoline.tools.mutants.mutant import chosen, load
from trampoline.tools.mutants.plan import HUNTED, SEQUENCES, plan

pytestmark = pytest.mark.slow

EXAMPLE = str(ROOT / "examples" / "own_mutant.py")
QUICK = ["image-freed-too-early", "tail-patched-first", "nop-not-atomic", "callee-saved-register-clobbered"]


@pytest.mark.parametrize("name", QUICK)
def test_quick_mutants_are_found_after_the_same_tries_by_one_process_and_by_two(name):
    (mutant,) = chosen(catalogue(), [name])
    found = [hunt(mutant, Hunt(budget=100, jobs=jobs)) for jobs in (1, 2)]
    assert [one.found for one in found] == [True, True]
    first, second = ((one.by, one.tries, one.unit, one.what.partition(" 0x")[0]) for one in found)
    assert first == second
    assert found[0].tries <= 400


def test_the_plan_looks_at_everything():
    assert set(HUNTED) == set(DESIGNS) - {"tracing-multi-v2"}
    units = list(islice(plan(1), 400))
    assert {unit.design for unit in units if unit.tool == SEQUENCES} == set(HUNTED)
    pairs = {(unit.scenario, unit.design) for unit in units if unit.scenario}
    whole = {(scenario, design) for scenario in SCENARIOS for design in HUNTED if applies(scenario, design)}
    assert pairs == whole | {("resize-during-lookup", "specialised+hash")}
    # All of that in the first three rounds, and programs on kernels that preempt in the first one.
    rounds = {seed: [unit for unit in units if unit.seed == seed] for seed in (1000, 1001, 1002)}
    assert {(unit.scenario, unit.design) for some in rounds.values() for unit in some if unit.scenario} == pairs
    assert any(unit.config == "lazy" for unit in rounds[1000])
    assert units == list(islice(plan(1), 400))
    assert units != list(islice(plan(2), 400))


def test_a_file_of_mutants_as_a_table_and_as_json(capsys):
    arguments = ["mutants", "--module", EXAMPLE, "--budget", "100s", "own-tail-forgotten"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"mutants", "control"}
    assert printed["control"] == {"steps": 0, "schedules": 0, "violations": 0}
    (row,) = printed["mutants"]
    assert set(row) == {"name", "found", "by", "tries", "seconds"}
    assert row["name"] == "own-tail-forgotten"
    assert row["found"] is True
    assert row["by"] in ("sequences", "schedules")
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert f"own-tail-forgotten               yes   {row['by']:9} {row['tries']:6}" in table
    assert "1 of 1 found" in table


def test_what_is_not_found_and_a_control_that_is_clean(tmp_path, capsys):
    file = tmp_path / "equal.py"
    file.write_text(
        "from trampoline.tools.mutants import Mutant, wrap\n"
        "MUTANTS = [Mutant('no-bug', '', 'nothing', wrap('emu.kernel.rcu.Rcu.call', lambda old: old))]\n"
    )
    assert main(["mutants", "--module", str(file), "--budget", "1s", "--json", "no-bug", "--control"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["mutants"][0]["found"] is False
    assert printed["mutants"][0]["by"] is None
    assert printed["control"]["violations"] == 0
    assert printed["control"]["steps"] + printed["control"]["schedules"] > 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import os\nMUTANTS = []\ndef patch():\n    os._exit(7)", "ended with status 7"),
        ("def patch():\n    raise RuntimeError('when it boots')", "when it boots"),
    ],
)
def test_a_process_that_dies_and_what_raises_when_something_boots(tmp_path, text, kind):
    file = tmp_path / "dies.py"
    file.write_text(
        f"from trampoline.tools.mutants import Mutant, replace\n{text}\n"
        "MUTANTS = [Mutant('dies', '', '', replace('emu.kernel.kernel.Kernel._boot_tasks', lambda kernel: patch()))]\n"
    )
    found = hunt(load(str(file))[0], Hunt(budget=100, module=str(file)))
    assert found.found
    assert kind in found.what
    assert found.tries >= 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("MUTANTS = 3", "MUTANTS is not a list"),
        ("MUTANTS = ['x']", "MUTANTS[0] is 'x', not a Mutant"),
        ("x = 1", "defines no MUTANTS"),
        ("1 / 0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("import sys\nsys.exit(3)", "ended the program"),
        ("from trampoline.tools.mutants import Mutant\nMUTANTS = [Mutant('a', '', '', [])] * 2", "two mutants have"),
        ("from trampoline.tools.mutants import Mutant\nMUTANTS = [Mutant('a b', '', '', [])]", "'a b' is not a valid"),
        (
            "from trampoline.tools.mutants import Mutant, replace\n"
            "MUTANTS = [Mutant('a', '', '', replace('emu.not.there', 1))]",
            "emu.not.there: ",
        ),
        ("from trampoline.tools.mutants import Mutant\nMUTANTS = [Mutant('a', '', '', 5)]", "5 is not a patch"),
        ("from trampoline.tools.mutants import Mutant\nMUTANTS = [Mutant('a', '', '', [])]", "a: it has no patch"),
        (
            "from trampoline.tools.mutants import Mutant, wrap\n"
            "MUTANTS = [Mutant('a', '', '', wrap('emu.kernel.rcu.Rcu.call', lambda old: 1 / 0))]",
            "a: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_files_that_are_none(tmp_path, capsys, text, says):
    file = tmp_path / "bad.py"
    file.write_text(text)
    assert main(["mutants", "--module", str(file), "--budget", "5s"]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["there-is-not"], "no mutant 'there-is-not'"),
        (["--module", "/there/is/not.py"], "not.py"),
        (["--jobs", "0"], "not a number of processes"),
        (["--budget", "soon"], "not a time"),
    ],
)
def test_wrong_arguments(capsys, arguments, says):
    assert main(["mutants", *arguments]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_the_list(capsys):
    assert main(["mutants", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(catalogue())
    assert any(line.startswith("nop-not-atomic") and "b90829704780" in line for line in lines)


def test_a_file_adds_mutants_and_its_names_come_first(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from trampoline.tools.mutants import Mutant\n"
        "MUTANTS = [Mutant('own', '', '', []), Mutant('no-int3-phase', 'mine', '', [])]\n"
    )
    found = known(str(file))
    assert [mutant.name for mutant in found[:2]] == ["own", "no-int3-phase"]
    assert found[1].bug == "mine"
    names = [mutant.name for mutant in found]
    assert sorted(names) == sorted({"own", *(mutant.name for mutant in catalogue())})
