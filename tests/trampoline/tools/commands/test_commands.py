"""The commands as a user meets them: what they print, and with which status they end."""

import gzip
import json
from pathlib import Path

import pytest

from paths import FIXTURES
from trampoline.designs import DESIGNS
from trampoline.releases import release_names
from trampoline.tools.bench.bench import ROWS
from trampoline.tools.cli import main

GOLDEN = FIXTURES / "golden"


def tramp(capsys, *argv):
    status = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_bench_prints_a_table(capsys):
    status, out, _ = tramp(capsys, "bench")
    assert status == 0
    lines = [line.split() for line in out.splitlines() if line.startswith(("fentry", "fexit", "fmodret"))]
    figures = {"fentry": ["92", "92"], "fexit": ["111", "111"], "fmodret": ["112", "112"]}
    assert {line[0]: line[3:5] for line in lines} == figures | {
        f"{name}-multi": known for name, known in figures.items()
    } | {"fentry-multi-all": ["92", "92"]}
    assert out.startswith("kernel 6.12, voluntary; 1 argument, 1 plain program\n")
    assert "Other designs: --design all" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_bench_of_all_designs(capsys):
    status, out, _ = tramp(capsys, "bench", "--design", "all", "--json", "--program", "full")
    assert status == 0
    assert {row["design"] for row in json.loads(out)["rows"]} == set(DESIGNS)
    assert "Other designs" not in out
    _, out, _ = tramp(capsys, "bench", "--design", "batched", "--programs", "2", "--nr-args", "0")
    assert out.startswith("kernel 6.12, voluntary; 0 arguments, 2 plain programs\n")
    assert out.splitlines()[-1] == "Other designs: --design all, or --design NAME."


def test_bench_names_what_is_refused(capsys):
    status, out, _ = tramp(capsys, "bench", "--design", "tracing-multi-v2", "--nr-args", "7")
    assert status == 0
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert lines["fentry"][3] == "104"
    assert lines["fentry-multi"] == ["fentry-multi", "tracing-multi-v2", "-", "-EOPNOTSUPP"]


def test_bench_as_json(capsys):
    status, out, _ = tramp(
        capsys, "bench", "--json", "--design", "per-function", "--config", "lazy", "--nr-args", "2", "--programs", "2"
    )
    rows = json.loads(out)["rows"]
    assert status == 0
    assert [(row["name"], row["design"], row["flavour"], row["config"]) for row in rows] == [
        (name, "per-function", "7.2", "lazy") for name in ROWS
    ]
    assert (rows[0]["further"], rows[0]["further_anchor"], rows[0]["kind"]) == (41, 41, "fentry")
    assert {row["nr_args"] for row in rows} == {2}
    assert rows[0]["instructions"] == 51 + 4 + 41
    assert (rows[0]["metadata"], rows[0]["program"], rows[0]["programs"]) == (None, "plain", 2)
    assert all(sum(row["phases"].values()) == row["instructions"] for row in rows)


def test_bench_as_json_has_every_design(capsys):
    _, out, _ = tramp(capsys, "bench", "--json", "--nr-args", "0")
    rows = json.loads(out)["rows"]
    assert list(dict.fromkeys(row["design"] for row in rows)) == list(DESIGNS)


def test_bench_on_all_kernels(capsys):
    _, out, _ = tramp(capsys, "bench", "--json", "--design", "per-function", "--flavour", "all", "--config", "all")
    assert len(json.loads(out)["rows"]) == len(release_names()) * 3 * len(ROWS)


def test_show_prints_the_listing_with_comments_and_phases(capsys):
    status, out, _ = tramp(capsys, "show", "bpf_fentry_test1", "--fentry", "--fexit", "--func-ip")
    assert status == 0
    assert "bpf_get_func_ip()" in out
    assert "\x1b[" not in out
    for phase in ("entry", "save", "enter", "program", "exit", "origin", "restore", "leave"):
        assert f" {phase} " in out


def test_show_of_an_own_prototype_as_json(capsys):
    status, out, _ = tramp(capsys, "show", "int f(int a, long b)", "--fmod-ret", "--flavour", "7.2", "--json")
    shown = json.loads(out)
    assert status == 0
    assert shown["site"].startswith("f30f1efae9")
    assert len(shown["image"]["lines"]) > 30
    assert any(line["comment"] == "b" for line in shown["image"]["lines"])


def test_show_in_colour_and_hardened(capsys):
    _, out, _ = tramp(
        capsys, "show", "bpf_fentry_test1", "--fexit", "--color", "always", "--return-thunk", "--call-depth"
    )
    assert "\x1b[" in out
    assert "its_return_thunk" in out
    assert "sar qword ptr gs:" in out


def test_golden_totals(capsys, tmp_path):
    path = tmp_path / "few"
    with gzip.open(GOLDEN / "7.2.jsonl.gz", "rt") as lines:
        path.write_text("".join(line for line, _ in zip(lines, range(5), strict=False)))
    status, out, _ = tramp(capsys, "golden", path)
    assert (status, out.splitlines()[1].split()) == (0, ["images", "5", "5", "0"])
    status, out, _ = tramp(capsys, "golden", path, "--json")
    assert json.loads(out)["replay"] == {"total": 5, "identical": 5, "skipped": 0}


def test_golden_shows_a_difference_side_by_side(capsys, tmp_path):
    path = tmp_path / "changed"
    with gzip.open(GOLDEN / "6.12.jsonl.gz", "rt") as lines:
        case = json.loads(next(lines))
    image = case["trampolines"][0]
    image["hex"] = image["hex"].replace("4883ec28", "4883ec30")
    path.write_text(json.dumps(case) + "\n")
    status, out, _ = tramp(capsys, "golden", path)
    assert status == 1
    assert "* " in out
    assert "sub rsp, 0x30" in out
    assert "sub rsp, 0x28" in out
    status, out, _ = tramp(capsys, "golden", path, "--json")
    (mismatch,) = json.loads(out)["mismatches"]
    assert status == 1
    assert mismatch["offset"] == 7
    assert mismatch.keys() == {"id", "what", "offset", "expected", "got"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["bench", "--nr-args", "13"], "13 arguments"),
        (["bench", "--nr-args", "x"], "invalid int"),
        (["bench", "--flavour", "5.4"], "no kernel release '5.4'"),
        (["bench", "--flavour", "6.1", "--nr-args", "7"], "7 argument slots"),
        (["bench", "--programs", "39"], "takes 38"),
        (["bench", "--programs", "0"], "at least one"),
        (["bench", "--design", "fast"], "no design 'fast'"),
        (["bench", "--metadata", "hash"], "per-function: no metadata 'hash'"),
        (["bench", "--functions", "no-such-file"], "No such file"),
        (["show", "no_such_function"], "no_such_function"),
        (["show", "int f("], "cannot read the prototype"),
        (["show", "int f(foo x)"], "cannot read"),
        (["show", "bpf_fentry_test1", "--fsession"], "no fsession"),
        (["show", "bpf_fentry_test1", "--cookie", "x"], "--cookie"),
        (["show"], "TARGET"),
        (["golden"], "FILE"),
        (["golden", "no-such-file"], "No such file"),
        (["golden", str(Path(__file__))], "not JSON"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, argv, message):
    status, out, err = tramp(capsys, *argv)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
