"""The state machine: every design keeps what its documents say, and one that does not is found out."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from trampoline.errors import TrampolineError
from trampoline.testing import TRAITS, Order, Traits, lab_machine

FEW = settings(
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("design", [design for design in TRAITS if design != "seed-v2"])
def test_designs_keep_what_is_documented(design):
    run_state_machine_as_test(lab_machine(design), settings=FEW)


def test_the_defects_of_the_posted_series_are_found():
    with pytest.raises(Exception, match=r"left over|not one of|in a call of|kfunc_md|read of"):
        run_state_machine_as_test(lab_machine("seed-v2"), settings=settings(FEW, max_examples=60))


def test_a_design_that_is_not_as_documented_is_found_out():
    wrong = lab_machine("batched", Traits(order=Order.OLDEST_FIRST))
    with pytest.raises(AssertionError, match="in a call of"):
        run_state_machine_as_test(wrong, settings=settings(FEW, max_examples=60))


def test_an_own_design_needs_traits():
    with pytest.raises(TrampolineError, match="traits"):
        lab_machine("nobody's")


def test_what_the_documentation_shows_runs():
    text = (Path(__file__).parent.parent.parent.parent / "docs" / "sequences.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(code.replace("max_examples=5", "max_examples=2"), "sequences.md", "exec"), {})
