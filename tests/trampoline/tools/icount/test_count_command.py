"""``tramp count``: what it counts, its exit statuses, its outputs, and what it refuses."""

import json
import re
import shlex
from xml.etree import ElementTree

import pytest

from paths import ROOT
from trampoline.tools.bench.bench import ROWS, measure
from trampoline.tools.cli import main
from trampoline.tools.icount.baseline import Baseline
from trampoline.tools.icount.bench_paths import Selection

OBJECT = ROOT / "examples" / "watch_calls.o"
FEXIT = "6.12/voluntary/per-function/fexit/1-arg"
FMODRET = "6.12/voluntary/per-function/fmodret/1-arg"


@pytest.fixture(scope="module")
def counted():
    """Rows that a test of this module counted already: they take as much the next time."""
    return {}


@pytest.fixture
def count(capsys, tmp_path, monkeypatch, counted):
    """Runs ``tramp count`` on ``b`` in an empty directory; gives status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    real = Selection.paths

    def paths(self):
        if repr(self) not in counted:
            counted[repr(self)] = real(self)
        return dict(counted[repr(self)])

    monkeypatch.setattr(Selection, "paths", paths)

    def run(*options):
        status = main(["count", "--baseline", "b", *map(str, options)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What ``--update`` writes without more."""
    file = tmp_path_factory.mktemp("usual") / "b"
    assert main(["count", "--baseline", str(file), "--update"]) == 0
    return file.read_text()


@pytest.fixture
def file(usual, tmp_path):
    """The baseline of the usual rows."""
    (tmp_path / "b").write_text(usual)
    return tmp_path / "b"


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def line_of(file, name):
    return next(n for n, row in enumerate(file.read_text().splitlines(), 1) if row.startswith(f"{name} ="))


def test_the_benchs_rows_are_counted(count, file):
    entries = Baseline.read(file).entries
    assert set(entries) == {f"6.12/voluntary/per-function/{row}/1-arg" for row in ROWS}
    for row in ("fexit", "fentry-multi"):
        entry = entries[f"6.12/voluntary/per-function/{row}/1-arg"]
        measured = measure(row, flavour="6.12", config="voluntary")
        assert entry.instructions == measured.instructions
        assert entry.path.unbalanced_returns == measured.unbalanced_returns
        assert {name: phase.instructions for name, phase in entry.path.phases.items()} == measured.phases
    assert count() == (0, "7 of 7 paths as in b\n", "")
    assert count("--update") == (0, "b: 7 paths written, nothing changed\n", "")


def test_a_row_does_not_depend_on_the_others(count, tmp_path):
    for design in ("tracing-multi-v2", "specialised"):
        count("--update", "--design", design, "--config", "none", "--programs", "2", "--nr-args", "3")
        together = Baseline.read(tmp_path / "b").entries
        for row in ("fmodret-multi", "fexit"):
            alone = measure(row, flavour="7.2", config="none", design=design, programs=2, nr_args=3)
            assert together[f"7.2/none/{design}/{row}/3-args/2-programs"].instructions == alone.instructions


def test_programs_that_read_have_rows_for_each_way_to_look_up(count, tmp_path):
    count("--update", "--design", "specialised", "--full")
    names = {name.removeprefix("6.12/voluntary/specialised/") for name in Baseline.read(tmp_path / "b").entries}
    assert {name for name in names if name.startswith("fexit")} == {
        "fexit/1-arg/full", "fexit-multi/1-arg/full",
        *(f"fexit-multi/1-arg/full/{metadata}" for metadata in ("padding", "hash", "flat")),
    }  # fmt: skip


def test_the_calls_of_an_object_are_counted_whole(count, tmp_path, monkeypatch):
    call = "bpf_fentry_test5(11, 12, 13, 14, 15)"
    status, out, _ = count(OBJECT, "--call", call, "--update")
    assert (status, out) == (0, f"{call}: new, 294\nb: 1 path written\n")
    # From another directory: the object is named as seen from the baseline.
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert main(["count", "--baseline", "../b"]) == 0


def test_a_function_with_programs(count, tmp_path):
    options = ("bpf_fentry_test1", "--fexit", "--fentry", "--call", "bpf_fentry_test1(1)", "--design", "batched")
    assert count(*options, "--update")[0] == 0
    assert count(*options) == (0, "1 of 1 path as in b\n", "")
    assert count() == (0, "1 of 1 path as in b\n", "")
    edit(tmp_path / "b", "(1) = ", "(1) = 1")
    assert "shorter" in count()[1]


def test_a_longer_path_is_status_3(count, file):
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 110")
    status, out, err = count()
    assert (status, err) == (3, "")
    assert out.startswith(f"{FEXIT}: longer: 110 -> 111 instructions (+1)\n")
    assert "\n  whole path              110    111      +1\n" in out
    assert "\n    enter                  37     37\n" in out
    assert "\n  unbalanced returns        1      1\n" in out
    assert out.endswith("update the baseline: tramp count --baseline b --update\n6 of 7 paths as in b\n")


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ((), 3, "longer: 108 -> 111 instructions (+3)"),
        (("--hard", "2"), 3, "longer (soft 0, hard 2): 108"),
        (("--hard", "3"), 0, f"warning: {FEXIT}: longer, beyond its soft limit (soft 0, hard 3): 108"),
        (("--hard", "3%"), 0, "longer, beyond its soft limit"),
        (("--hard", "3%", "--soft", "3"), 0, "longer, within its soft limit"),
        (("--hard", "2%"), 3, "longer (soft 0, hard 2%)"),
    ],
)
def test_limits(count, file, options, status, says):
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 108")
    edit(file, "fmodret/1-arg = 112", "fmodret/1-arg = 115")
    found, out, _ = count(*options)
    assert found == status
    assert says in out
    shorter = says.replace("longer", "shorter").replace("108 -> 111", "115 -> 112").replace("+3", "-3")
    assert shorter.replace(FEXIT, FMODRET).replace(": 108", ": 115") in out


def test_limits_that_the_baseline_states(count, file):
    assert count("--update", "--hard", "4", "--soft", "1")[0] == 0
    assert "unbalanced=1 soft=1 hard=4" in file.read_text()
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 108")
    assert count()[0] == 0
    assert count("--hard", "1")[0] == 3
    assert count("--update")[0] == 0
    assert "unbalanced=1 soft=1 hard=4" in file.read_text()


def test_a_shorter_path_is_status_3_and_asks_for_an_update(count, file):
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 120")
    status, out, err = count()
    assert (status, err) == (3, "")
    assert out.startswith(f"{FEXIT}: shorter: 120 -> 111 instructions (-9)\n")
    assert "\n  whole path              120    111      -9\n" in out
    assert out.endswith("The baseline needs an update: tramp count --baseline b --update\n6 of 7 paths as in b\n")
    status, out, _ = count("--hard", "9", "--soft", "9")
    assert status == 0
    assert out.startswith(f"{FEXIT}: shorter, within its soft limit (soft 9, hard 9): 120 -> 111 instructions (-9)\n\n")
    assert count("--update") == (0, f"{FEXIT}: 120 -> 111 (-9)\nb: 7 paths written\n", "")


def test_other_phases_of_the_same_number_ask_for_an_update(count, file):
    edit(file, " origin=18:", " origin=17:")
    edit(file, " leave=3:", " leave=4:")
    status, out, _ = count()
    assert status == 0
    assert f"{FEXIT}: as many instructions, in other phases: 111 -> 111 instructions (+0)\n" in out
    assert out.endswith("\nThe baseline needs an update: tramp count --baseline b --update\n5 of 7 paths as in b\n")


@pytest.mark.parametrize(("before", "difference"), [(0, "0 -> 1 (+1)"), (2, "2 -> 1 (-1)")])
def test_other_unbalanced_returns_are_a_difference_whatever_the_limits(count, file, before, difference):
    edit(file, "unbalanced=1", f"unbalanced={before}")
    status, out, _ = count("--hard", "50%")
    assert status == 3
    same = "other unbalanced returns (soft 0, hard 50%): 111 -> 111 instructions (+0)"
    assert f"{FEXIT}: {same}, unbalanced returns {difference}" in out


def test_names_that_are_missing_or_stale_are_status_2(count, file):
    edit(file, f"{FEXIT} = 111", "old = 111")
    status, out, _ = count()
    assert status == 2
    assert f"b has no count of\n  {FEXIT}\n\nb is stale; no longer counted:\n  old\n" in out
    assert "To rewrite the baseline: tramp count --baseline b --update" in out


def test_a_part_of_the_paths_makes_nothing_stale(count, tmp_path):
    count("--update", "--design", "batched", "--config", "all")
    assert count("--design", "batched", "--config", "none") == (0, "7 of 7 paths as in b\n", "")
    assert count() == (0, "21 of 21 paths as in b\n", "")
    edit(tmp_path / "b", "7.2/none/batched/fexit/1-arg = ", "7.2/none/batched/old = ")
    assert count("--design", "batched", "--config", "lazy") == (0, "7 of 7 paths as in b\n", "")
    assert count()[0] == 2


def test_json(count, file):
    status, out, _ = count("--json")
    assert (status, json.loads(out)["status"]) == (0, 0)
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 110")
    edit(file, "fentry/1-arg = 92", "other = 92")
    status, out, _ = count("--json")
    found = json.loads(out)
    assert (status, found["status"], found["baseline"]) == (3, 3, "b")
    paths = {path["name"]: path for path in found["paths"]}
    assert paths[FEXIT] == {
        "name": FEXIT,
        "verdict": "longer",
        "fails": True,
        "line": line_of(file, FEXIT),
        "instructions": {"old": 110, "new": 111, "difference": 1},
        "unbalanced_returns": {"old": 1, "new": 1, "difference": 0},
        "phases": {
            name: {"old": number, "new": number, "difference": 0}
            for name, number in measure("fexit", flavour="6.12", config="voluntary").phases.items()
        },
        "limits": {"soft": "0", "hard": "0"},
        "conditions": {"flavour": "6.12", "config": "voluntary", "design": "per-function"},
        "changed_code": [],
    }
    assert [path["verdict"] for path in paths.values()].count("equal") == 5
    assert found["missing"] == ["6.12/voluntary/per-function/fentry/1-arg"]
    assert found["stale"] == ["6.12/voluntary/per-function/other"]
    edit(file, f"{FEXIT} = 110", f"{FEXIT} = 109")
    written = json.loads(count("--update", "--json")[1])
    assert written["changed"][FEXIT] == {"old": 109, "new": 111}
    assert written["written"] == 7


def test_junit_xml(count, file, tmp_path):
    edit(file, f"{FEXIT} = 111", f"{FEXIT} = 109")
    edit(file, "fentry/1-arg = 92", "<other> & = 92")
    edit(file, "fmodret/1-arg = 112", "fmodret/1-arg = 114")
    edit(file, "fmodret-multi/1-arg = 112", "fmodret-multi/1-arg = 113")
    assert count("--junit", "out.xml", "--hard", "1")[0] == 3
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    (suite,) = root
    assert (root.tag, suite.tag, suite.get("name")) == ("testsuites", "testsuite", "b")
    numbers = {"tests": "8", "failures": "2", "errors": "2", "skipped": "0"}
    assert {name: suite.get(name) for name in numbers} == numbers == dict(root.attrib)
    cases = {case.get("name"): case for case in suite}
    assert len(cases) == len(list(suite)) == 8
    assert all(case.tag == "testcase" and case.get("classname") == "b" for case in suite)
    (failure,) = cases[FEXIT]
    assert (failure.tag, failure.get("message")) == (
        "failure", f"{FEXIT}: longer (soft 0, hard 1): 109 -> 111 instructions (+2)"
    )  # fmt: skip
    assert "whole path" in failure.text
    (shorter,) = cases[FMODRET]
    assert (failure.get("type"), shorter.get("type")) == ("longer", "shorter")
    (within,) = cases["6.12/voluntary/per-function/fmodret-multi/1-arg"]
    assert within.tag == "system-out"
    errors = {name: case[0].get("message") for name, case in cases.items() if len(case) and case[0].tag == "error"}
    assert errors == {
        "6.12/voluntary/per-function/fentry/1-arg": "the baseline has no count of it",
        "6.12/voluntary/per-function/<other> &": "no longer counted",
    }
    assert sum(len(case) == 0 for case in suite) == 3


def test_githubs_annotations_name_the_line_of_the_baseline(count, file):
    for row, now, was in (
        ("fentry", 92, 90), ("fentry-multi", 92, 95), ("fexit", 111, 109), ("fmodret", 112, 114),
        ("fmodret-multi", 112, 113),
    ):  # fmt: skip
        edit(file, f"{row}/1-arg = {now}", f"{row}/1-arg = {was}")
    status, out, _ = count("--github", "--soft", "1", "--hard", "2%")
    assert status == 3
    commands = [line for line in out.splitlines() if line.startswith("::")]
    form = re.compile(r"::(error|warning|notice) file=b,line=(\d+),title=([^:,]*)::(.*)")
    found = [form.fullmatch(line) for line in commands]
    prefix = "6.12/voluntary/per-function/"
    titles = {
        "fentry-multi": ("error", "shorter"),
        "fentry": ("error", "longer"),
        "fexit": ("warning", "longer%2C beyond its soft limit"),
        "fmodret-multi": ("notice", "shorter%2C within its soft limit"),
        "fmodret": ("warning", "shorter%2C beyond its soft limit"),
    }
    assert [(match[1], int(match[2]), match[3]) for match in found] == [
        (kind, line_of(file, f"{prefix}{row}/1-arg"), f"{prefix}{row}/1-arg {what}")
        for row, (kind, what) in titles.items()
    ]
    assert "%0A" in found[0][4]
    assert "hard 2%25)" in found[2][4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--flavour", "7.2"), "b: this is a baseline of flavour 6.12, not of 7.2"),
        (("--config", "lazy", "--flavour", "6.12"), "b: this is a baseline of config voluntary, not of lazy"),
        (("--design", "batched"), "b: this is a baseline of design per-function, not of batched"),
        (("--flavour", "5.4"), "no kernel release '5.4'"),
        (("--design", "fast"), "no design 'fast'"),
        (("--nr-args", "x"), "invalid int"),
        (("--fexit",), "programs need a TARGET"),
        (("--call", "f(1)"), "--call is only for a TARGET"),
        (("bpf_fentry_test1", "--programs", "2"), "--programs is only for the bench's rows"),
        (("bpf_fentry_test1", "--live"), "--live is only for stepping"),
        (("bpf_fentry_test1", *["--call", "bpf_fentry_test1(1)"] * 2), "may be given only once"),
        (("no-such.o",), "No such file"),
        (("--soft", "1"), "soft=1: without"),
        (("--hard", "a lot"), "'a lot' is not a limit"),
        (("--json", "--github"), "not allowed with"),
        (("--junit", "none/out.xml"), "none/out.xml: No such file"),
        (("--update", "--junit", "out.xml"), "--update does not compare"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(count, file, options, message):
    before = file.read_bytes()
    status, out, err = count(*options)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "b: no such baseline; tramp count --baseline b --update makes it"),
        (b"# a page\n", "b: not a baseline of counts: its first line is not '# tramplab counts, format 1'"),
        (b"\xff\xfe", "b: not a baseline of counts"),
        (b"", "b: not a baseline of counts"),
        (b"# tramplab counts, format 9\n", "b:1: format 9; this version reads 1"),
        (b"# tramplab counts, format 1\nfexit\n", "b:2: damaged: 'fexit' is not NAME = N"),
        (b"# tramplab counts, format 1\nfexit = 5\n", "b: made by hand, not by tramp count"),
        (b"# tramplab counts, format 1\n# made by: pytest --icount-update\n", "made by pytest --icount-update, not by"),
        (b"# tramplab counts, format 1\n# made by: tramp count --fast\n", "damaged: made by 'tramp count --fast'"),
    ],
)
def test_a_baseline_that_cannot_be_used(count, tmp_path, content, message):
    if content is not None:
        (tmp_path / "b").write_bytes(content)
    status, out, err = count()
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    if content is not None and b"made by" not in content:
        # Nor is what may be somebody's page overwritten.
        status, out, err = count("--update")
        assert (status, out) == (2, "")
        assert "it is not overwritten: delete it first" in err
        assert (tmp_path / "b").read_bytes() == content


def test_what_cannot_be_written_is_status_2_and_nothing_is_half_written(count, tmp_path, capsys):
    assert main(["count", "--baseline", "none/b", "--update"]) == 2
    assert capsys.readouterr().err == "tramp count: none/b: No such file or directory\n"
    (tmp_path / "b").mkdir()
    status, out, err = count("--update")
    assert (status, out) == (2, "")
    assert "b: Is a directory" in err
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_header_says_how_it_was_made(count, file):
    made_by = Baseline.read(file).made_by
    assert made_by.startswith("tramp count ")
    assert count(*shlex.split(made_by)[2:])[0] == 0
