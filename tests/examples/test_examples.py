"""The examples run, and print what their texts say."""

import importlib.util

import pytest

from paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"


def run(name, capsys):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    return capsys.readouterr().out


def test_attach_and_count(capsys):
    out = run("attach_and_count", capsys)
    assert out.count("arguments (2, 3), returns 5") == 3
    assert "200 instructions" in out


def test_trace_object(capsys):
    assert run("trace_object", capsys).splitlines() == [
        "sum_to(4,) = 10",
        "add was called with [(0, 1), (1, 2), (3, 3), (6, 4)]",
        "551 instructions, 38 of them in sum_to",
    ]


RUN_BY_THEMSELVES = sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "own_mutant.py"})  # that is for ``tramp mutants``


@pytest.mark.parametrize("path", RUN_BY_THEMSELVES, ids=lambda path: path.stem)
def test_every_example_runs(path, capsys):
    assert run(path.stem, capsys)
