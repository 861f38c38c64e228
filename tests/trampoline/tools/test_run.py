"""``tramp run`` and ``tramp jit``: compiled objects, from file to what is printed."""

import json
import struct

import pytest

from paths import ROOT
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Workload
from trampoline.tools.cli import main
from trampoline.tools.run import run_object
from trampoline.tools.show.jit import compiled_object

FOLDER = ROOT / "tests"
EXAMPLE = FOLDER.parent / "examples" / "watch_calls.o"
FENTRY = FOLDER / "selftests" / "fentry_test.o"
CALLS = ("bpf_fentry_test5(11, 12, 13, 14, 15)", "bpf_fentry_test5(1, 2, 3, 4, 5)")


def tramp(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("flavour", ["6.1", "6.12", "7.2"])
@pytest.mark.parametrize("design", ["per-function", "batched", "specialised"])
def test_what_a_program_saw(flavour, design):
    outcome = run_object(Workload(EXAMPLE, calls=CALLS, flavour=flavour, design=design))
    assert [call.value for call in outcome.calls] == [65, 15]
    assert outcome.maps["by_result"] == {65: 1, 15: 1}
    assert [line.text for line in outcome.trace] == ["call 1: a=11 ret=65", "call 2: a=1 ret=15"]
    assert outcome.variables["seen"] == outcome.variables["recorded"] == 2
    records = [struct.unpack("<QQQQiiii", record) for record in outcome.maps["calls"]]
    assert [(number, *rest) for number, _, *rest in records] == [(1, 11, 12, 13, 14, 65, 0), (2, 1, 2, 3, 4, 15, 0)]
    for call in outcome.calls:
        assert call.counts.instructions > call.before > 0
        assert sum(call.counts.by_phase.values()) == call.counts.instructions
        assert call.counts.by_phase["program"] > 50


def test_first_values_of_variables():
    outcome = run_object(Workload(EXAMPLE, calls=CALLS, data={"at_least": 16}))
    assert (outcome.variables["seen"], outcome.variables["recorded"]) == (2, 1)


def test_another_target_and_a_cookie(capsys):
    path = FOLDER / "selftests" / "bpf_cookie.o"
    status, out, err = tramp(
        capsys, "run", path, "--program", "cookie_at_entry", "--target", "cookie_at_entry=bpf_fentry_test2",
        "--cookie", "cookie_at_entry=0x1234", "--call", "bpf_fentry_test2(2, 3)", "--json",
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["attached"] == ["cookie_at_entry (fentry) on bpf_fentry_test2"]
    assert 0x1234 in found["variables"].values()
    assert found["calls"][0]["value"] == 5


def test_what_is_printed(capsys):
    status, out, err = tramp(capsys, "run", EXAMPLE, "--call", CALLS[0])
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "attached watch (fexit) on bpf_fentry_test5"
    assert f"{CALLS[0]} = 65" in lines
    assert "  65: 1" in lines
    assert lines[-1].endswith("bpf_trace_printk: call 1: a=11 ret=65")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.o"], "nowhere.o"),
        ([__file__], "ELF"),
        ([EXAMPLE, "--call", "bpf_fentry_test5(1"], "is not a call"),
        ([EXAMPLE, "--call", "bpf_fentry_test5(1)"], "takes 5 arguments"),
        ([EXAMPLE, "--call", "no_such(1)"], "no_such"),
        ([EXAMPLE, "--program", "nobody"], "nobody"),
        ([EXAMPLE, "--set", "nothing=1"], "nothing"),
        ([EXAMPLE, "--flavour", "5.4"], "5.4"),
        ([EXAMPLE, "--design", "mine"], "mine"),
        ([EXAMPLE, "--target", "watch=no_such"], "no_such"),
    ],
)
def test_bad_input_is_one_line(capsys, words, says):
    status, out, err = tramp(capsys, "run", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert says in err


def test_a_refused_program_is_told_with_the_reason(capsys):
    # It reads a fifth argument.
    status, _, err = tramp(capsys, "run", EXAMPLE, "--target", "watch=bpf_fentry_test2")
    assert status == 2
    assert err.count("\n") == 1
    assert err.startswith("tramp run: watch, slot ")
    assert "watch_calls.c:43" in err
    assert "EACCES" in err


@pytest.mark.parametrize("flavour", ["6.1", "6.12", "7.2"])
def test_machine_code_is_whole(flavour):
    for function in compiled_object(Workload(FENTRY, flavour=flavour)):
        addresses = [row.address for row in function.rows]
        assert addresses == sorted(addresses)
        assert function.rows[0].address == function.address
        for row, following in zip(function.rows, function.rows[1:], strict=False):
            assert row.address + len(row.code) == following.address
        assert function.rows[0].insn == ""
        assert "exit" in [row.insn for row in function.rows]


def test_side_by_side(capsys):
    status, out, err = tramp(capsys, "jit", EXAMPLE, "--program", "watch")
    assert (status, err) == (0, "")
    assert "; ./watch_calls.c:47: seen++;" in out
    assert " call bpf_trace_printk " in out
    assert any("r1 += 1" in line and "add rdi, 1" in line for line in out.splitlines())
    # The call of a function of its own, by name on both sides.
    assert any(line.count("_count") == 2 for line in out.splitlines())
    status, out, _ = tramp(capsys, "jit", EXAMPLE, "--json")
    assert [function["name"].split("_")[-1] for function in json.loads(out)] == ["watch", "count"]


def test_jit_of_what_is_no_object(capsys):
    status, out, err = tramp(capsys, "jit", __file__)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_a_call_that_faults_is_told_with_its_place():
    with pytest.raises(TrampolineError, match=r"bpf_fentry_test9\(1\): .*bpf_fentry_test9"):
        run_object(Workload(FENTRY, calls=("bpf_fentry_test9(1)",)))
