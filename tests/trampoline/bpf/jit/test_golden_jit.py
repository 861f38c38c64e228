"""Compiled functions are the kernels', byte for byte (a selection; the whole recordings: ``tramp golden``)."""

import gzip
import json

import pytest

from paths import FIXTURES
from trampoline.bpf.errors import GoldenError
from trampoline.bpf.jit.rules import IndirectJump
from trampoline.tools.golden.jit import compare_jit_file
from trampoline.tools.golden.jit_boot import recorded_boot
from trampoline.tools.golden.jit_case import read_jit_cases
from trampoline.tools.golden.report import compare_files, file_kind

FIXTURES = FIXTURES / "jit"
RELEASES = ("6.1", "6.12", "7.2")


def lines(release):
    with gzip.open(FIXTURES / f"{release}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("release", RELEASES)
def test_every_function_is_identical(release):
    totals, differences = compare_jit_file(FIXTURES / f"{release}.jsonl.gz")
    assert not differences
    assert totals.identical == totals.total > 100
    assert {"alu64", "random", "tail", "probe"} <= totals.by_category.keys()


def test_one_wrong_byte_is_a_difference(tmp_path):
    records = [record for record in lines("7.2") if "funcs" in record][:30]
    func = records[3]["funcs"][0]
    code = bytearray.fromhex(func["jited"])
    code[20] ^= 1
    func["jited"] = code.hex()
    report = compare_files([write(tmp_path / "wrong.jsonl", records)])
    assert [(d.id, d.offset) for d in report.mismatches] == [(records[3]["id"], 20)]
    assert report.jit.identical == report.jit.total - 1
    category = report.to_json()["jit"]["by_category"][records[3]["category"]]
    assert category["identical"] == category["total"] - 1


def test_a_wrong_extable_entry_is_a_difference(tmp_path):
    records = lines("6.12")
    record = next(r for r in records if r["category"] == "probe" and r["funcs"][0].get("extable"))
    record["funcs"][0]["extable"][0]["fixup"] ^= 1
    (difference,) = compare_files([write(tmp_path / "wrong.jsonl", records)]).mismatches
    assert difference.id == record["id"]
    assert difference.what.startswith("extable")


@pytest.mark.parametrize("release", RELEASES)
def test_boots_are_told_apart_by_what_cases_name(release):
    runs = {}
    for case in read_jit_cases(FIXTURES / f"{release}.jsonl.gz"):
        runs.setdefault(case.run.rsplit("-", 1)[1], []).append(case)
    plain, mitigated = recorded_boot(runs["mitoff"]).jit, recorded_boot(runs["skylake"]).jit
    assert (plain.boot.return_thunk, plain.indirect_jump) == (None, IndirectJump.PLAIN)
    assert mitigated.boot.return_thunk
    assert mitigated.indirect_jump is IndirectJump.THUNK


@pytest.mark.parametrize(
    ("cpu", "has"),
    [
        ("max,la57=off", True),
        ("Skylake-Server", True),
        ("Skylake-Server,-bmi2", False),
        ("Nehalem", False),
        ("qemu64,+bmi2", True),
        ("EPYC-Rome", True),
        ("IvyBridge-IBRS", False),
    ],
)
def test_bmi2_is_known_by_the_processors_name(cpu, has, tmp_path):
    record = next(r for r in lines("6.12") if "funcs" in r)
    record["qemu_cpu"] = cpu
    assert recorded_boot(read_jit_cases(write(tmp_path / "one.jsonl", [record]))).jit.bmi2 is has


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("__x86_indirect_thunk_rcx", 32),
        ("__x86_indirect_jump_thunk_rcx", 32),
        ("__x86_indirect_its_thunk_rcx", 64),
        ("__x86_indirect_thunk_array+0x20", 32),
    ],
)
def test_thunks_of_all_registers_are_known_by_one(name, offset, tmp_path):
    record = next(r for r in lines("6.12") if "funcs" in r)
    record["symbols"] = {"ffffffff82000100": name}
    boot = recorded_boot(read_jit_cases(write(tmp_path / "one.jsonl", [record]))).jit
    assert boot.indirect_jump is IndirectJump.THUNK
    assert (boot.thunks[1], boot.thunks[7]) == (0xFFFFFFFF82000100, 0xFFFFFFFF82000100 + 6 * offset)


def test_lines_of_several_boots_may_be_mixed(tmp_path):
    records = lines("7.2")
    report = compare_files([write(tmp_path / "mixed.jsonl", sorted(records, key=lambda r: r["case"]))])
    assert report.jit.identical == report.jit.total > 100


def damaged(field, value):
    record = next(r for r in lines("6.12") if "funcs" in r)
    record["funcs"][0][field] = value
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (damaged("addr", "no address"), "'addr' is not a hexadecimal number"),
        (damaged("insnsi", "9z"), "'insnsi' is not hexadecimal"),
        (damaged("stack_depth", "8"), "'stack_depth' is '8'"),
        ({**damaged("addr", "0"), "kernel": "5.4.1"}, "no release for kernel"),
        ({**damaged("addr", "0"), "put": "x"}, "'put' is 'x'"),
        ({**damaged("addr", "0"), "symbols": {"zz": "f"}}, "'symbols' is not a hexadecimal number: 'zz'"),
    ],
)
def test_damaged_recordings_are_refused_with_their_place(record, message, tmp_path):
    path = write(tmp_path / "damaged.jsonl", [record])
    with pytest.raises(GoldenError, match=message) as raised:
        compare_files([path])
    assert str(raised.value).startswith(f"{path}:1")


def test_kind_of_a_file_is_told_by_its_first_line(tmp_path):
    assert file_kind(FIXTURES / "6.1.jsonl.gz") == "jit"
    assert file_kind(FIXTURES.parent / "golden" / "6.1.jsonl.gz") == "trampolines"
    assert file_kind(write(tmp_path / "verdicts.jsonl", [{"id": "a", "verdict": "loaded"}])) == "verdicts"
    with pytest.raises(GoldenError, match="not a recorded case"):
        file_kind(write(tmp_path / "foreign.jsonl", [{"id": "a"}]))
    with pytest.raises(GoldenError, match="no case in it"):
        file_kind(write(tmp_path / "empty.jsonl", []))


def test_bytecode_that_is_none_is_a_difference_of_its_function(tmp_path):
    records = [record for record in lines("6.1") if "funcs" in record][:5]
    records[2]["funcs"][0]["insnsi"] = "ff" * 8
    report = compare_files([write(tmp_path / "wrong.jsonl", records)])
    assert [d.id for d in report.mismatches] == [records[2]["id"]]
    assert "BytecodeError" in report.mismatches[0].got
