"""A deliberate change of one instruction in a template: exactly the paths that execute it fail, and say why."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paths import ROOT
from trampoline.callees import prog_enter_exit as prog_callees
from trampoline.designs import DESIGNS
from trampoline.image.generator import _Template
from trampoline.tools.icount.baseline import Baseline, format_baseline
from trampoline.tools.icount.bench_paths import Selection
from trampoline.tools.icount.compare import compare_all
from trampoline.tools.icount.explain import explain_report
from trampoline.tools.icount.limits import Limits

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "counts-in-ci.md"
REMEDY = "pytest --icount-update tests/test_rows.py"
GENERATED = ("per-function", "batched")


@pytest.fixture(scope="module")
def own() -> Baseline:
    """The rows of every design on two kernels, as they are without a change."""
    paths = Selection(["6.12"], ["voluntary"], list(DESIGNS)).paths()
    paths |= Selection(["7.2"], ["lazy"], list(DESIGNS)).paths()
    text = format_baseline({name: (path, Limits()) for name, path in paths.items()}, "pytest --icount-update")
    return Baseline.parse(text, Path("own"))


def failing(own, **options):
    """Names that differ, and the whole message."""
    options = {"flavours": ["6.12"], "configs": ["voluntary"], "designs": list(DESIGNS)} | options
    report = compare_all(own.entries, Selection(**options).paths(), partial=True)
    assert (report.missing, report.foreign) == ([], {})
    assert report.findings
    return {finding.name: finding for finding in report.failures}, explain_report(report, "own", REMEDY)


def lengthen_enter(monkeypatch):
    """Give __bpf_prog_enter_recur one nop more."""
    real = prog_callees._enter

    def enter(config, form, return_thunk):
        routine = real(config, form, return_thunk)
        if form.suffix != "_recur":
            return routine
        return replace(routine, text=routine.text.replace("    test eax, eax\n", "    nop\n    test eax, eax\n", 1))

    monkeypatch.setattr(prog_callees, "_enter", enter)


@pytest.fixture
def longer_enter(monkeypatch):
    lengthen_enter(monkeypatch)


def test_without_a_change_nothing_fails(own):
    assert failing(own, designs=["batched"]) == ({}, "")


def test_a_longer_callee_fails_the_paths_that_call_it_and_no_others(own, longer_enter):
    failures, message = failing(own)
    expected = {
        name
        for name, entry in own.entries.items()
        if name.startswith("6.12/voluntary/") and name.endswith("/1-arg")
        if any(piece.name == "__bpf_prog_enter_recur" for piece in entry.path.phases["enter"].pieces)
    }
    # Trampolines call it, also those beside the callers of the posted series; these and ours have it inline.
    assert {name.split("/")[2] for name in expected} == set(DESIGNS) - {"specialised"}
    assert set(failures) == expected
    for finding in failures.values():
        assert finding.difference == 1
        old, new = finding.old.path.phases, finding.new.phases
        assert {phase for phase in new if new[phase].instructions != old[phase].instructions} == {"enter"}
    # One listing for all of them.
    assert message.count("code that changed") == 1
    assert f"phase enter, code that changed, {len(failures)} paths (6.12/voluntary/" in message
    assert re.search(r"\n  __bpf_prog_enter_recur, old +__bpf_prog_enter_recur, new\n", message)
    (added,) = [line for line in message.splitlines() if re.search(r" > ", line)]
    assert added.split() == [">", "nop"]
    assert re.search(r"\n  test eax, eax +test eax, eax\n", message)


def test_the_page_shows_what_it_says(own, longer_enter):
    _, message = failing(own, designs=["specialised", "batched"])
    assert f"```text\n{message}\n```" in PAGE.read_text()


def test_a_longer_instruction_sequence_of_the_generator_fails_the_paths_that_execute_it(own, monkeypatch):
    real = _Template._call_original

    def call_original(self):
        yield from real(self)
        yield "mov rax, rax"

    monkeypatch.setattr(_Template, "_call_original", call_original)
    failures, message = failing(own, configs=["lazy"], flavours=["7.2"])
    # fmod_ret programs of the bench skip the original, fentry ones never call it.
    rows = {(name.split("/")[2], name.split("/")[3]) for name in failures}
    plain = {(name, "fexit") for name, design in DESIGNS.items() if design.links == "multi"}
    trampolines = {(design, row) for design in (*GENERATED, "generic") for row in ("fexit", "fexit-multi")}
    assert rows == plain | trampolines
    assert re.search(r"origin \d+ -> \d+ \(\+1\)", message)
    assert re.search(r"\n +> mov rax, rax\n", message)


def test_one_instruction_less_fails_as_well(own, monkeypatch):
    real = prog_callees._exit
    monkeypatch.setattr(
        prog_callees,
        "_exit",
        lambda *args: (lambda it: replace(it, text=it.text.replace("dec dword ptr gs:[rax]\n", "\n", 1)))(real(*args)),
    )
    failures, message = failing(own, designs=["batched"])
    assert len(failures) == 7
    assert all(finding.difference == -1 for finding in failures.values())
    assert "batched/fentry/1-arg: shorter: 92 -> 91 instructions (-1)" in message
    assert re.search(r"\n  dec dword ptr gs:\[rax\] +<\n", message)
    assert message.endswith(f"The baseline needs an update: {REMEDY}")


def test_a_test_of_rows_fails_with_it(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        test_rows="""
        import pytest

        from trampoline.tools.icount.bench_paths import Selection

        @pytest.mark.parametrize("design", ["per-function", "specialised"])
        def test_every_row(icount, design):
            icount.check_all(Selection(["6.12"], ["voluntary"], [design], programs=(1, 2)).paths())
        """
    )

    def run(*words):
        ini = pytester.makeini("[pytest]")
        return pytester.runpytest_inprocess("-p", "trampoline.tools.pytest_plugin", "-c", ini, "--noconftest", *words)

    run("--icount-update").assert_outcomes(passed=2)
    run().assert_outcomes(passed=2)
    lengthen_enter(monkeypatch)
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_every_row*per-function*",
            "6.12/voluntary/per-function/fentry/1-arg: longer: 92 -> 93 instructions (+1)",
            "*  enter 37 -> 38 (+1)  *; unbalanced returns 0",
            "6.12/voluntary/per-function/fentry/1-arg/2-programs: longer: 172 -> 174 instructions (+2)",
            "phase enter, code that changed, 7 paths (*",
            "*> nop",
            "If these are intended, update the baseline: pytest --icount-update *test_rows.py",
        ]
    )
