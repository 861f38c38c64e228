"""The pytest plugin, as pytest runs it."""

import subprocess
import sys

import pytest

from paths import ROOT

pytestmark = pytest.mark.slow

MODULE = """
    import pytest

    PROGRAM = "xor eax, eax\\nret"

    @pytest.mark.parametrize("kind", ["fentry", "fexit"])
    def test_cost(tracing, icount, kind):
        tracing.attach(tracing.prog(kind, PROGRAM), "bpf_fentry_test1")
        icount.check(kind, tracing.call("bpf_fentry_test1", 1))

    @pytest.mark.tracing("7.2", config="lazy")
    def test_lazy(tracing, kernel, icount):
        assert kernel is tracing.kernel
        assert (tracing.release.name, kernel.config.name, tracing.design.name) == ("7.2", "lazy", "per-function")
        tracing.attach(tracing.prog("fentry", PROGRAM), "bpf_fentry_test1")
        icount.check("lazy", lambda: tracing.call("bpf_fentry_test1", 1))

    def test_something_else():
        pass
"""
COUNTS = {"fentry": 97, "fexit": 116, "lazy": 58}


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest on a module with a few checks, within this process or (with ``-n``) in others."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_x=MODULE)
    pytester.makeini("[pytest]\n")

    def start(*args):
        options = ["-p", "trampoline.tools.pytest_plugin", "-p", "no:cacheprovider", *args]
        if "-n" in args:
            return pytester.runpytest_subprocess("-p", "xdist.plugin", *options)
        return pytester.runpytest_inprocess(*options)

    return start


@pytest.fixture(scope="module")
def made():
    """The text of the module's baseline, once a test has made it."""
    return []


@pytest.fixture
def baseline(run, pytester, made):
    file = pytester.path / "test_x.icount"
    if not made:
        run("--icount-update").assert_outcomes(passed=4)
        made.append(file.read_text())
    file.write_text(made[0])
    return file


def test_the_example_is_as_long_as_its_baseline(run, pytester):
    for file in (ROOT / "examples" / "counts").glob("test_cost.*"):
        (pytester.path / file.name).write_text(file.read_text())
    result = run("test_cost.py")
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    assert "counts of instructions" not in result.stdout.str()


def counts_of(file):
    lines = [line.rpartition(" = ") for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {name: int(number) for name, _, number in lines}


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_missing_baseline_is_an_error_that_says_how_to_make_it(run, pytester):
    result = run()
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        ["test_x.icount: no such baseline", "To make it: pytest --icount-update test_x.py"]
    )
    assert not (pytester.path / "test_x.icount").exists()


def test_an_update_makes_it_and_says_what_changed(run, pytester):
    result = run("--icount-update")
    result.assert_outcomes(passed=4)
    file = pytester.path / "test_x.icount"
    assert counts_of(file) == COUNTS
    assert list(counts_of(file)) == sorted(COUNTS)
    result.stdout.fnmatch_lines(["test_x.icount: fentry: new, 97", "*fexit: new, 116", "*lazy: new, 58", "1 baseline*"])
    content = file.read_bytes()
    result = run("--icount-update")
    result.stdout.fnmatch_lines(["0 baselines written"])
    assert file.read_bytes() == content
    run().assert_outcomes(passed=4)
    assert "flavour=7.2 config=lazy design=per-function unbalanced=0" in file.read_text()


def test_a_longer_path_fails_with_everything_about_it(run, baseline):
    edit(baseline, "fexit = 116", "fexit = 115")
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "fexit: longer: 115 -> 116 instructions (+1)",
            "  flavour 6.12, config voluntary, design per-function",
            "  whole path              115    116      +1",
            "    enter                  37     37",
            "    origin                 18     18",
            "  unbalanced returns        1      1",
            "If this is intended, update the baseline: pytest --icount-update test_x.py",
        ]
    )


def test_a_shorter_path_fails_and_asks_for_an_update(run, baseline, pytester):
    edit(baseline, "fexit = 116", "fexit = 118")
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "fexit: shorter: 118 -> 116 instructions (-2)",
            "  whole path              118    116      -2",
            "The baseline needs an update: pytest --icount-update test_x.py",
        ]
    )
    run("--icount-update").stdout.fnmatch_lines(["test_x.icount: fexit: 118 -> 116 (-2)"])
    assert counts_of(baseline) == COUNTS


def test_limits_of_the_configuration_and_of_the_check(run, baseline, pytester):
    edit(baseline, "fexit = 116", "fexit = 114")
    edit(baseline, "fentry = 97", "fentry = 98")
    pytester.makeini("[pytest]\nicount_soft = 1\nicount_hard = 2%\n")
    result = run()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "fentry: shorter, within its soft limit (soft 1, hard 2%): 98 -> 97 instructions (-1): the baseline needs*",
            "warning: fexit: longer, beyond its soft limit (soft 1, hard 2%): 114 -> 116 instructions (+2): the*",
        ]
    )
    edit(pytester.path / "test_x.py", '("bpf_fentry_test1", 1))\n\n@', '("bpf_fentry_test1", 1), soft=0, hard=1)\n\n@')
    run().assert_outcomes(passed=3, failed=1)
    run("--icount-update")
    assert "unbalanced=1 soft=0 hard=1\n" in baseline.read_text()
    assert "unbalanced=0 soft=1 hard=2%\n" in baseline.read_text()


def test_names_that_nobody_checks_any_more_are_an_error(run, baseline):
    edit(baseline, "lazy = 58", "lazy = 58\nold = 5")
    result = run()
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["ERROR: test_x.icount is stale; no longer counted:", "  old", "To rewrite*: pytest --icount-update test_x.py"]
    )
    result = run("--icount-update")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_x.icount: old: gone, 5 before"])
    assert counts_of(baseline) == COUNTS


@pytest.mark.parametrize(
    "args", [("-k", "lazy"), ("test_x.py::test_lazy",), ("--deselect", "test_x.py::test_cost"), ("-m", "tracing")]
)
def test_a_part_of_a_module_makes_nothing_stale(run, baseline, args):
    edit(baseline, "lazy = 58", "lazy = 58\nold = 5")
    assert run(*args).ret == 0
    edit(baseline, "lazy = 58", "lazy = 59")
    result = run(*args, "--icount-update")
    result.stdout.fnmatch_lines(["test_x.icount: lazy: 59 -> 58 (-1)"])
    assert counts_of(baseline) == COUNTS | {"old": 5}


def test_a_module_whose_tests_fail_makes_nothing_stale(run, baseline, pytester):
    edit(baseline, "lazy = 58", "lazy = 58\nold = 5")
    module = pytester.path / "test_x.py"
    edit(module, "def test_something_else():\n    pass", "def test_something_else():\n    assert 0")
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    assert "is stale" not in result.stdout.str()
    run("--icount-update")
    assert counts_of(baseline) == COUNTS | {"old": 5}


def test_a_baseline_without_its_module_is_stale(run, baseline, pytester):
    (pytester.path / "test_gone.icount").write_text(baseline.read_text())
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: test_gone.icount is stale: no test_gone.py; delete it"])


def test_a_module_without_checks_loses_its_baseline(run, baseline, pytester):
    pytester.makepyfile(test_x="def test_nothing():\n    pass\n")
    assert run().ret == pytest.ExitCode.TESTS_FAILED
    run("--icount-update").stdout.fnmatch_lines(["*lazy: gone, 58 before", "0 baselines written, 1 removed"])
    assert not baseline.exists()


def test_a_baseline_of_another_flavour(run, baseline, pytester):
    pytester.makeini("[pytest]\ntracing_flavour = 6.1\ntracing_design = batched\n")
    result = run()
    result.assert_outcomes(passed=1, failed=3)  # one has a marker, but not for the design
    result.stdout.fnmatch_lines(
        [
            "test_x.icount is another kernel's or design's baseline: fentry: flavour 6.12, not 6.1;"
            " design per-function, not batched",
            "To rewrite the baseline: pytest --icount-update test_x.py",
        ]
    )


def test_a_damaged_baseline(run, baseline):
    edit(baseline, "fexit = 116", "<<<<<<< ours\nfexit = 116")
    result = run()
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["test_x.icount:*: damaged: '<<<<<<< ours' is not NAME = N"])
    result = run("--icount-update", "-k", "lazy")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: test_x.icount:*run all tests of test_x.py to rewrite it, or delete it"])
    assert "<<<<<<< ours" in baseline.read_text()
    assert run("--icount-update").ret == 0
    assert counts_of(baseline) == COUNTS


def test_a_baseline_that_cannot_be_written(run, baseline):
    edit(baseline, "fexit = 116", "fexit = 117")
    content = baseline.read_text()
    baseline.unlink()
    baseline.mkdir()
    result = run("--icount-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: *test_x.icount: Is a directory: no baseline was written"])
    assert [path.name for path in baseline.parent.iterdir() if path.name.startswith("tmp")] == []
    baseline.rmdir()
    baseline.write_text(content)


def test_other_numbers_of_one_name(run, pytester):
    module = pytester.path / "test_x.py"
    edit(module, "icount.check(kind,", 'icount.check("same",')
    result = run("--icount-update")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*same has two checks that differ: 97 instructions in test_x.py::test_*"])


def test_what_cannot_be_checked(run, pytester):
    pytester.makepyfile(
        test_x="""
        def test_no_lab(icount):
            from trampoline.lab import Lab
            with Lab("6.12") as lab:
                icount.check("own", lab.call("bpf_fentry_test1", 1), lab=lab)
                icount.check("none", lab.call("bpf_fentry_test1", 1))

        def test_no_call(icount):
            icount.check("number", 5)

        def test_limits(icount, tracing):
            icount.check("limits", tracing.call("bpf_fentry_test1", 1), soft=2)
        """
    )
    result = run("--icount-update")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*none: no laboratory; use the fixture tracing, or pass lab=",
            "*number: expected a call or a path, not int",
            "*soft=2: without a hard limit every difference is a failure",
        ]
    )
    assert counts_of(pytester.path / "test_x.icount") == {"own": 4}


def test_the_kernel_comes_from_the_marker_the_parameter_or_the_configuration(run, pytester):
    pytester.makeini("[pytest]\ntracing_config = lazy\n")
    pytester.makepyfile(
        test_x="""
        import pytest

        def kind(tracing):
            return tracing.release.name, tracing.kernel.config.name, tracing.design.name

        def test_configuration(tracing):
            assert kind(tracing) == ("6.12", "lazy", "per-function")

        @pytest.mark.tracing(design="batched")
        class TestMarkers:
            def test_outer(self, tracing):
                assert kind(tracing) == ("6.12", "lazy", "batched")

            @pytest.mark.tracing("6.1", "none", vcpus=2)
            def test_both(self, tracing, kernel):
                assert kind(tracing) == ("6.1", "none", "batched")
                assert len(kernel.machine.vcpus) == 2

        @pytest.mark.parametrize("tracing", ["7.2", {"flavour": "7.2", "design": "specialised"}], indirect=True)
        def test_parameter(tracing):
            assert kind(tracing) in (("7.2", "lazy", "per-function"), ("7.2", "lazy", "specialised"))
        """
    )
    run("--strict-markers").assert_outcomes(passed=5)


def test_workers_of_xdist_share_a_baseline(run, pytester):
    result = run("-n", "2", "--icount-update")
    result.assert_outcomes(passed=4)
    file = pytester.path / "test_x.icount"
    assert counts_of(file) == COUNTS
    result.stdout.fnmatch_lines(["1 baseline written"])
    content = file.read_text()
    run("--icount-update").stdout.fnmatch_lines(["0 baselines written"])
    assert file.read_text() == content
    edit(file, "lazy = 58", "lazy = 60\nold = 5")
    result = run("-n", "2", "-o", "icount_hard=2")
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "warning: lazy: shorter, beyond its soft limit * 60 -> 58*",
            "ERROR: test_x.icount is stale; no longer counted:",
            "  old",
        ]
    )


def test_the_plugin_costs_nothing_to_those_who_do_not_use_it(tmp_path):
    (tmp_path / "test_y.py").write_text(
        "import sys\n\n"
        "def test_what_is_loaded():\n"
        "    assert not {'emu', 'asm', 'unicorn', 'capstone', 'keystone', 'trampoline.bpf.errors'} & set(sys.modules)\n"
        "    assert {name for name in sys.modules if name.startswith('trampoline')} == "
        "{'trampoline', 'trampoline.tools', 'trampoline.tools.pytest_plugin'}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "trampoline.tools.pytest_plugin", "-p", "no:cacheprovider", "-q", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "counts of instructions" not in done.stdout
