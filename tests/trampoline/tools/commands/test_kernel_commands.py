"""The commands on real kernels: facts, calls in memory images, costs and their differences, verdicts, bad input."""

import csv
import io
import json
import lzma
import struct

import pytest
from real_kernels import kernel_folder

from emu.vmlinux import prepared_state
from emu.vmlinux.kernel_image import KernelImage
from paths import ROOT
from real_cores import CORES, HOW
from trampoline.tools.cli import main

SELFTESTS = ROOT / "tests" / "selftests"
EXPECTED = sorted((CORES / "expected").glob("*.json")) if (CORES / "expected").is_dir() else []
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture
def tramp(capsys, monkeypatch, prepared):
    monkeypatch.setattr(prepared_state, "default_folder", lambda: prepared)

    def run(*argv):
        status = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def _text(call):
    arguments = ["zero:64" if isinstance(a, str) and a.startswith("zeroed") else str(a) for a in call["args"]]
    return f"{call['call']}({', '.join(arguments)})"


@pytest.mark.skipif(not EXPECTED, reason=HOW)
@pytest.mark.parametrize("path", EXPECTED, ids=[path.stem for path in EXPECTED])
def test_calls_in_a_memory_image_are_those_that_the_machine_made(path, tramp):
    expected = json.loads(path.read_text())
    calls = [word for call in expected["calls"] for word in ("--call", _text(call))]
    status, out, _ = tramp("run", "--kernel", CORES / "mini" / expected["core"], *calls, "--json")
    assert status == 0
    made = [(c["call"], c["value"], c["instructions"], c["by_function"]) for c in json.loads(out)["calls"]]
    assert made == [(_text(call), call["ret"], call["total"], call["order"]) for call in expected["calls"]]


@pytest.mark.skipif(not EXPECTED, reason=HOW)
def test_a_memory_image_says_what_was_attached(tramp):
    core = CORES / "mini" / "612-A.core.xz"
    status, out, _ = tramp("kernel", core, "--json", "--listing")
    found = json.loads(out)
    assert (status, found["kind"], found["current"]["name"]) == (0, "memory image", "h5load")
    attached = {one["function"]: one for one in found["attachments"]}
    assert attached["bpf_fentry_test1"]["program"]["name"] == "h5_0_fentry"
    assert attached["bpf_fentry_test1"]["trampoline_name"].startswith("bpf_trampoline_")
    assert any("call __bpf_prog_enter_recur" in line for line in attached["bpf_fentry_test1"]["listing"])
    assert any(gap.startswith("links: ") for gap in found["gaps"])
    status, out, _ = tramp("kernel", core)
    assert "bpf_fentry_test1 trampoline: h5_0_fentry" in out
    status, _, err = tramp("bench", "--kernel", core)
    assert (status, err.count("\n")) == (2, 1)
    assert "is a memory image" in err


def test_facts_of_a_kernels_file(tramp):
    status, out, _ = tramp("kernel", kernel_folder("6.12"), "--json")
    found = json.loads(out)
    assert (status, found["kind"], found["release"][:5]) == (0, "unbooted", "6.12.")
    assert found["configuration"]["FUNCTION_ALIGNMENT"] == "16"
    assert found["sites"]["functions"] > 10_000
    assert found["sites"]["patched"] == 0
    assert (found["ways"]["fentry"], found["ways"]["kprobe-session"]) == ("", "")
    assert "FSESSION" in found["ways"]["fsession"]
    assert "kmalloc_node_trace" in found["floor"]["missing"]


def test_an_object_on_a_kernel_with_a_call(tramp):
    status, out, _ = tramp(
        "run", "--kernel", kernel_folder("6.12"), SELFTESTS / "fentry_test.o", "--call", "bpf_fentry_test1(1)", "--json"
    )
    found = json.loads(out)
    assert (status, found["variables"]["saw1"], found["variables"]["saw2"]) == (0, 1, 0)
    assert "test1: fentry bpf_fentry_test1" in found["attached"]
    (call,) = found["calls"]
    assert (call["value"], call["before"]) == (2, 4)
    assert sum(count for _, count in call["by_function"]) == call["instructions"] > 100


def test_a_byte_of_a_patch_is_the_whole_difference(tramp, tmp_path):
    base = kernel_folder("7")
    image = KernelImage.open(base)
    address = image.kallsyms["__bpf_prog_exit_recur"]
    code = image.read(address, 64)
    # One instruction, and 90 90 are two. It is a static branch's: what patches that, or a kprobe, would find it wrong.
    nop = code.index(bytes.fromhex("6690"))
    changed = bytearray(image.elf)
    at = image.elf.index(code) + nop
    changed[at] = 0x90
    (tmp_path / "vmlinux").write_bytes(changed)
    status, out, _ = tramp(
        "bench", "--kernel", base, "--kernel", tmp_path / "vmlinux", "--way", "fentry", "--way", "rawtp", "--json"
    )
    assert status == 0
    (difference,) = json.loads(out)["differences"]
    assert difference == [
        {"way": "fentry", "instructions": 1, "further": 1, "by_function": {"__bpf_prog_exit_recur": 1}},
        {"way": "rawtp", "instructions": 0, "further": 0, "by_function": {}},
    ]


def test_verdicts_and_differences_are_tables_by_kernel(tramp):
    kernels = [word for name in ("6.12", "7") for word in ("--kernel", kernel_folder(name))]
    status, out, _ = tramp("verify", SELFTESTS / "fentry_test.o", *kernels, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (status, len(rows)) == (0, 16)
    assert {row["outcome"] for row in rows} == {"accepted"}
    assert {(row["program"], row["instructions"]) for row in rows if row["program"] == "test1"} == {("test1", "16")}
    status, out, _ = tramp("bench", *kernels, "--way", "rawtp", "--way", "fexit", "--json")
    assert status == 0
    for row in json.loads(out)["differences"][0]:
        assert sum(row["by_function"].values()) == row["instructions"] != 0
    status, out, _ = tramp("verify", SELFTESTS / "fsession.o", *kernels, "--json")
    assert status == 1
    first, second = json.loads(out)
    assert (first["outcome"], first["errname"], second["outcome"]) == ("unresolved", "ESRCH", "accepted")
    status, out, _ = tramp("verify", SELFTESTS / "fsession.o", *kernels)
    assert (status, "session_cookie is of another type" in out) == (1, True)


def _elf(machine, kind=2):
    header = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 0, 0, 0, 0)
    return b"\x7fELF\2\1\1" + bytes(9) + header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither a bzImage nor an ELF file"),
        (b"#!/bin/sh\n" * 100, "neither a bzImage nor an ELF file"),
        (_elf(183), "AArch64"),
        (_elf(62), ""),
        (_elf(183, 4), "183"),
        (_elf(62, 4), ""),
        (lzma.compress(b"no core"), "neither an ELF core nor a kdump file"),
        (b"KDUMP   " + bytes(100), ""),
    ],
    ids=["empty", "script", "arm64", "no-segments", "arm64-core", "empty-core", "xz", "kdump"],
)
@pytest.mark.parametrize("command", ["kernel", "run", "bench", "verify"])
def test_what_is_no_kernel_ends_in_one_line(command, content, message, tramp, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    argv = {
        "kernel": [path],
        "run": ["--kernel", path, "--call", "f()"],
        "bench": ["--kernel", path],
        "verify": [SELFTESTS / "fentry_test.o", "--kernel", path],
    }[command]
    status, out, err = tramp(command, *argv)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tramp {command}: ")
    assert "unexpected" not in err
    assert message in err


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_a_truncated_kernel_ends_in_one_line(share, tramp, tmp_path):
    file = next(kernel_folder("6.12").glob("boot/vmlinuz-*"))
    content = file.read_bytes()
    (tmp_path / "vmlinuz").write_bytes(content[: int(len(content) * share)])
    status, _, err = tramp("kernel", tmp_path / "vmlinuz")
    assert (status, err.count("\n")) == (2, 1)
    assert "truncated" in err


def test_a_kernel_without_symbols_ends_in_one_line(tramp, tmp_path):
    image = KernelImage.open(kernel_folder("6.12"))
    elf = bytearray(image.elf)
    size = len(elf) // 16
    for start in range(0, len(elf), size):
        if start:  # all after the headers, in the middle of which the tables lie
            elf[start : start + size] = bytes(len(elf[start : start + size]))
    (tmp_path / "vmlinux").write_bytes(elf)
    status, _, err = tramp("kernel", tmp_path / "vmlinux")
    assert (status, err.count("\n")) == (2, 1)
    assert "kallsyms" in err


def test_a_call_that_can_not_be_made_ends_in_one_line(tramp):
    status, _, err = tramp("run", "--kernel", kernel_folder("6.12"), "--call", "no_such_function(1)")
    assert (status, err) == (2, "tramp run: this kernel has no symbol 'no_such_function'\n")
    status, _, err = tramp("run", "--kernel", kernel_folder("6.12"), "--call", "bpf_fentry_test1(zero:9000)")
    assert (status, "more than half of the stack" in err) == (2, True)
    status, _, err = tramp("run", "--call", "bpf_fentry_test1(1)")
    assert (status, "an object is needed" in err) == (2, True)
    status, _, err = tramp("bench", "--kernel", kernel_folder("6.12"), "--way", "nothing")
    assert (status, "no way 'nothing'" in err) == (2, True)
