import json

import pytest

from paths import ROOT
from trampoline.tools.cli import main

OBJECT = ROOT / "examples" / "watch_calls.o"


def tramp(capsys, *argv):
    status = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_one_run_in_every_format(capsys, tmp_path):
    names = ("r.html", "r.json", "r.speedscope.json", "callgrind.out.r", "r.folded")
    outputs = [word for name in names for word in ("-o", tmp_path / name)]
    assert tramp(capsys, "report", "bpf_fentry_test1", "--fexit", *outputs) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "callgrind.out.r.lst"])
    trace = json.loads((tmp_path / "r.json").read_text())
    total = trace["otherData"]["instructions"]
    assert total == 116
    assert trace["otherData"]["title"] == "fexit on bpf_fentry_test1, kernel 6.12, voluntary, design per-function"
    profile = json.loads((tmp_path / "r.speedscope.json").read_text())
    assert [one["endValue"] for one in profile["profiles"]] == [total]
    assert sum(int(line.split()[1]) for line in (tmp_path / "r.folded").read_text().splitlines()) == total
    assert f"summary: {total}\n" in (tmp_path / "callgrind.out.r").read_text()
    assert f"<span>{total} instructions</span>" in (tmp_path / "r.html").read_text()


def test_the_same_twice(capsys, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        outputs = ("-o", folder / "r.html", "-o", folder / "r.json", "-o", folder / "r.callgrind")
        assert tramp(capsys, "report", "bpf_fentry_test2", "--compare", "specialised", *outputs[:2])[0] == 0
        assert tramp(capsys, "report", "bpf_fentry_test2", *outputs[2:])[0] == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_an_object(capsys, tmp_path):
    out = tmp_path / "r.html"
    call = "bpf_fentry_test5(11, 12, 13, 14, 15)"
    assert tramp(capsys, "report", OBJECT, "--call", call, "-o", out) == (0, "", "")
    text = out.read_text()
    assert f"{call} = 65" in text
    assert "294 instructions" in text
    assert "watch_calls.c:47: seen++;" in text


def test_a_format_by_name(capsys, tmp_path):
    assert tramp(capsys, "report", "bpf_fentry_test1", "-o", tmp_path / "x.json", "--format", "collapsed")[0] == 0
    assert (tmp_path / "x.json").read_text().startswith("bpf_fentry_test1 4\n")


def test_a_bench(capsys, tmp_path):
    out = tmp_path / "bench.html"
    argv = ("--bench", "--flavour", "7.2", "--config", "lazy", "--compare", "specialised", "-o", out)
    assert tramp(capsys, "report", *argv) == (0, "", "")
    assert "kernel 7.2, lazy; 1 argument, 1 plain program" in out.read_text()


def test_baselines_beside_it(capsys, tmp_path):
    baseline, out = tmp_path / "x.icount", tmp_path / "r.html"
    call = ("bpf_fentry_test1", "--fexit", "--call", "bpf_fentry_test1( 41 )")
    assert tramp(capsys, "count", *call, "--baseline", baseline, "--update")[0] == 0
    baseline.write_text(baseline.read_text().replace("= 116", "= 100"))
    assert tramp(capsys, "report", *call, "--baseline", baseline, "-o", out) == (0, "", "")
    assert '<td class="n">100</td>\n<td class="n">116<span class="delta more">+16</span></td>' in out.read_text()
    assert tramp(capsys, "count", "--baseline", tmp_path / "b.icount", "--update")[0] == 0
    assert tramp(capsys, "report", "--bench", "--baseline", tmp_path / "b.icount", "-o", out) == (0, "", "")
    assert "111 · baseline 111 · measured 111" in out.read_text()
    out.unlink()
    status, _, err = tramp(capsys, "report", "--bench", "--baseline", baseline, "-o", out)
    assert (status, len(err.splitlines())) == (2, 1)
    assert "it has no 6.12/voluntary/per-function/fentry" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["bpf_fentry_test1"], "-o/--output"),
        (["-o", "{}/r.html"], "pass a TARGET or --bench"),
        (["bpf_fentry_test1", "-o", "{}/r.pdf"], "unknown format"),
        (["bpf_fentry_test1", "-o", "{}/r.html", "--format", "pdf"], "invalid choice: 'pdf'"),
        (["bpf_fentry_test1", "-o", "{}/no/r.html"], "no/r.html: No such file or directory"),
        (["bpf_fentry_test1", "-o", "{}", "--format", "html"], "Is a directory"),
        (["bpf_fentry_test1", "-o", "{}/a.html", "-o", "{}/no/r.json"], "no/r.json: No such file or directory"),
        (["bpf_fentry_test1", "-o", "{}/r.json", "--compare", "specialised"], "shows one design"),
        (["bpf_fentry_test1", "-o", "{}/r.html", "--compare", "fast"], "no design or kernel 'fast'"),
        (["bpf_fentry_test1", "-o", "{}/r.html", "--baseline", "{}/no"], "no such baseline"),
        (["bpf_fentry_test1", "-o", "{}/r.html", "--live"], "--live"),
        (["bpf_fentry_test1", "-o", "{}/r.html", "--call", "f("], "is not a call"),
        (["no_such_function", "-o", "{}/r.html"], "no_such_function"),
        (["no-such.o", "-o", "{}/r.html"], "no-such.o"),
        (["bpf_fentry_test1", "--bench", "-o", "{}/r.html"], "--bench: without a TARGET"),
        (["--bench", "-o", "{}/r.json"], "to an html file only"),
        (["--bench", "--design", "fast", "-o", "{}/r.html"], "no design 'fast'"),
        (["bpf_fentry_test1", "--design", "tracing-multi-v2", "--fsession", "-o", "{}/r.html"], "fsession"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, argv, message):
    status, out, err = tramp(capsys, "report", *(word.format(tmp_path) for word in argv))
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_call_that_faults(capsys, tmp_path):
    argv = ("int f(void *p)", "--call", "f(16)", "--fentry", "-o", tmp_path / "r.html")
    assert tramp(capsys, "report", *argv)[0] == 0
    (tmp_path / "r.html").unlink()
    argv = ("bpf_testmod:bpf_testmod_fentry_test1", "--call", "bpf_fentry_test1(1, 2)", "-o", tmp_path / "r.html")
    status, _, err = tramp(capsys, "report", *argv)
    assert (status, len(err.splitlines())) == (2, 1)
    assert not list(tmp_path.iterdir())


SCHEDULE = "detach-during-call/tracing-multi-v2/6.12/voluntary/-/b4c36b2"


def test_a_schedule(capsys, tmp_path):
    outputs = [word for name in ("r.json", "r.folded", "r.callgrind") for word in ("-o", tmp_path / name)]
    status, out, _ = tramp(capsys, "replay", SCHEDULE, *outputs)
    assert (status, tramp(capsys, "replay", SCHEDULE)) == (1, (1, out, ""))
    lines = (tmp_path / "r.folded").read_text().splitlines()
    assert out.splitlines()[-1].endswith("instructions: 0 on cpu 0, 30 on cpu 1")
    assert sum(int(line.split()[1]) for line in lines) == 30
    assert all(line.split()[0].split(";")[1] == "explored" for line in lines)
    trace = json.loads((tmp_path / "r.json").read_text())
    assert trace["otherData"]["title"] == f"tramp replay {SCHEDULE}"
    assert {event["tid"] for event in trace["traceEvents"] if event["ph"] in "BE"} == {1}
    patched = [event["name"] for event in trace["traceEvents"] if event["name"].startswith("text patched")]
    assert patched == ["text patched: INT3", "text patched: TAIL", "text patched: FIRST BYTE"]


def test_a_schedule_is_no_page(capsys, tmp_path):
    status, out, err = tramp(capsys, "replay", SCHEDULE, "-o", tmp_path / "r.html")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "only tramp report writes pages" in err


def test_a_run(capsys, tmp_path):
    call = ("run", OBJECT, "--call", "bpf_fentry_test5(11, 12, 13, 14, 15)", "--set", "at_least=100")
    status, out, err = tramp(capsys, *call, "-o", tmp_path / "r.folded", "-o", tmp_path / "r.json")
    assert (status, err, tramp(capsys, *call)) == (0, "", (0, out, ""))
    counted = int(out.split(" instructions,")[0].split()[-1])
    assert sum(int(line.split()[1]) for line in (tmp_path / "r.folded").read_text().splitlines()) == counted
    names = [event["name"] for event in json.loads((tmp_path / "r.json").read_text())["traceEvents"]]
    assert "image made: bpf_trampoline_6442450945" in names
