"""Recorded verdicts: reading them, answering them, counting agreement; ``tramp golden`` and ``tramp verify``."""

import gzip
import json
from errno import E2BIG, EACCES, EINVAL

import pytest

from btf_writer import Writer
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.errors import GoldenError
from trampoline.bpf.isa.codec import encode
from trampoline.bpf.isa.insn import CALL, EXIT, LD_IMM64, CallKind, Imm64, Insn
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.tools import cli
from trampoline.tools.golden.verdict_case import read_verdicts
from trampoline.tools.golden.verdict_program import program_of, target_program
from trampoline.tools.golden.verdicts import compare_verdicts

RETURN_0 = encode(parse("r0 = 0\nexit")).hex()


def written():
    w = Writer()
    number = w.int("int", 4, 1)
    w.func("vfs_read", number, ("a", number))
    return w


VFS_READ = 3


def record(case="target/fe", verdict="attached", **fields):
    refused = verdict.endswith("_refused")
    load = fields.pop("errno", EINVAL) if refused else None
    return {
        "id": f"612-verd/{case}", "case": case, "category": case.partition("/")[0], "kernel": "6.12.1-test",
        "verdict": verdict, "load_errno": load if verdict == "load_refused" else None,
        "attach_errno": load if verdict == "attach_refused" else None, "prog_type": 26, "attach_type": 24,
        "prog_flags": 0, "license": "GPL", "caps_dropped": 0, "attach_btf_id": VFS_READ, "attach_mode": "l",
        "extra": {}, "insns": RETURN_0, "maps": [], "message": None, "log_level": 1, "log": "",
    } | fields  # fmt: skip


@pytest.fixture
def recording(tmp_path):
    """Writes records as a recording, with the kernel's BTF where it is looked for."""

    def write(*records):
        golden, btf = tmp_path / "golden" / "verdicts", tmp_path / "btf"
        golden.mkdir(parents=True, exist_ok=True)
        btf.mkdir(exist_ok=True)
        (btf / "6.12.btf").write_bytes(written().bytes())
        path = golden / "6.12.jsonl.gz"
        path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode()))
        return path

    return write


def outcomes(path):
    totals, differences = compare_verdicts(path)
    return totals, [(difference.expected, difference.got) for difference in differences]


def test_what_agrees_and_what_does_not_is_counted_by_category(recording):
    path = recording(
        record(),
        record("target/loaded", "loaded", attach_mode=None),
        record("target/sleeps", "load_refused", prog_flags=16),
        record("attr/type", "load_refused", prog_type=99),
        record("attr/errno", "load_refused", errno=EACCES, prog_type=99, attach_btf_id=0),
        record("attr/accepts", "load_refused", message="for a reason"),
        record("attr/attaches", "attach_refused"),
        record("attr/struct-ops", "loaded", prog_type=27, attach_mode=None),
    )
    totals, differences = outcomes(path)
    assert (totals.total, totals.agree, totals.false_accepts, totals.unsupported) == (8, 4, 2, 1)
    categories = totals.to_json()["by_category"]
    assert categories["target"] == {"total": 3, "agree": 3, "false_accepts": 0, "unsupported": 0}
    assert categories["attr"] == {"total": 5, "agree": 1, "false_accepts": 2, "unsupported": 1}
    assert differences == [
        ("load_refused EACCES", "load_refused EINVAL: no program type 99"),
        ("load_refused EINVAL: for a reason", "attached"),
        ("attach_refused EINVAL", "attached"),
        ("loaded", "unsupported: verifier-lite does not model struct_ops programs"),
    ]


def test_links_that_stay_count_with_those_that_the_recording_leaves_out(recording):
    held = [record(f"limit/tramp-{number:02}-fe", extra={"hold": 1}) for number in (0, 1, 30, 37)]
    last = record("limit/tramp-38-fe", "attach_refused", errno=E2BIG, extra={"hold": 1})
    totals, differences = outcomes(recording(*held, last, record("limit/other", "attach_refused", errno=E2BIG)))
    assert (totals.agree, differences) == (6, [])


def test_a_kept_program_is_the_target_of_later_ones(recording):
    keep = record("ext/keep", "loaded", attach_mode=None, extra={"keep": "tgt2"})
    onto = record("ext/onto", extra={"tgt": "tgt2"}, attach_btf_id=4)
    assert outcomes(recording(keep, onto))[1] == []
    assert outcomes(recording(onto))[0].unsupported == 1


def case_of(recording, **fields):
    return next(read_verdicts(recording(record(**fields))))


def test_requests_and_maps_are_read(recording):
    modes = {
        None: "None", "l": "LinkCreate()", "o": "RawTracepointOpen(name=None)", "n:x": "RawTracepointOpen(name='x')",
        "p:a/b": "PerfTracepoint(system='a', name='b')", "m:f,g": "KprobeMulti(symbols=('f', 'g'))",
        "k:f+4": "PerfKprobe(symbol='f', offset=4, retprobe=False)",
    }  # fmt: skip
    for mode, expected in modes.items():
        assert repr(case_of(recording, attach_mode=mode).request) == expected
    insns = encode((Insn(LD_IMM64, 1, Imm64.MAP_FD, imm=2), Insn(EXIT))).hex()
    maps = [{"index": 2, "name": "m", "type": 2, "key": 4, "val": 8, "max": 1}]
    read = case_of(recording, insns=insns, maps=maps).maps
    assert (len(read), read[2].name, read[2].value_size) == (3, "m", 8)


def test_what_a_recording_asks_and_we_do_not_know_is_unsupported(recording):
    path = recording(record(attach_mode="z:f"), record(caps_dropped=9))
    totals, differences = outcomes(path)
    assert totals.unsupported == 2
    assert [got for _, got in differences] == [
        "unsupported: verifier-lite does not model attaching by 'z:f'",
        "unsupported: verifier-lite does not model capabilities dropped as 9",
    ]


def test_malformed_ld_imm64_ends_the_program(recording):
    case = case_of(recording, insns=RETURN_0 + "1801000000000000")
    assert (len(case.insns), case.bad_slot) == (2, 2)
    path = recording(record("ld64/cut", "load_refused", insns=RETURN_0 + "1801000000000000"))
    assert outcomes(path)[1] == []


CALLS = encode((Insn(CALL, src=CallKind.SUBPROG, imm=1), Insn(EXIT), Insn(EXIT))).hex()


@pytest.mark.parametrize(
    ("case", "log", "expected"),
    [
        ("call/plain", "", [("main", "global", 0), ("f1", "static", 2)]),
        ("call/no-btf", "", []),
        ("attr/func-info-missing-sub", "", [("main", "global", 0)]),
        ("attr/func-info-bad-type", "", [("", "", 0), ("f1", "static", 2)]),
        ("call/g", "Func#1 ('gf') is global and assumed valid.", [("main", "global", 0), ("gf", "global", 2)]),
    ],
)
def test_types_that_the_recording_does_not_hold(recording, case, log, expected):
    program = program_of(case_of(recording, case=case, insns=CALLS, log=log), {})
    found = []
    for info in program.funcs:
        kind = program.btf.type(info.type_id)
        is_func = kind.kind == BtfKind.FUNC
        found.append((kind.name, ("static", "global")[kind.count], info.slot) if is_func else ("", "", info.slot))
    assert found == expected


def test_parameters_are_what_the_log_says_that_registers_hold(recording):
    log = "Validating gf() func#1...\n2: R1=ctx() R2=scalar() R3=mem_or_null(id=1,sz=4) R10=fp0\n"
    program = program_of(case_of(recording, case="call/g", insns=CALLS, log=log), {})
    function = program.btf.function(program.funcs[1].type_id)
    assert [value.type for value in function.values] == ["struct __sk_buff *", "int", "s4 *"]


def test_the_target_of_extensions_has_its_functions_where_they_were():
    target = target_program()
    names = {info.type_id: target.btf.type(info.type_id).name for info in target.funcs}
    assert names == {5: "main", 8: "gsub", 10: "ssub"}
    assert (target.prog_type, target.attach) == (ProgType.SOCKET_FILTER, AttachType.NONE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"verdict": "perhaps"}, "'verdict' is 'perhaps'"),
        ({"kernel": "5.4.0"}, "no release for kernel '5.4.0'"),
        ({"caps_dropped": "all"}, "'caps_dropped' is 'all'"),
        ({"insns": "b7"}, "'insns' has 1 bytes"),
        ({"insns": "zz"}, "'insns' is not hexadecimal"),
        ({"prog_type": "26"}, "'prog_type' is '26'"),
        ({"maps": [{"index": 0}]}, "'name' is missing"),
        ({"extra": []}, "'extra' is []"),
    ],
)
def test_damage_is_named_with_its_place(recording, fields, said):
    path = recording(record(), record() | fields)
    with pytest.raises(GoldenError, match=r":2 \(612-verd/target/fe\)") as error:
        list(read_verdicts(path))
    assert said in str(error.value)


def test_tramp_golden_prints_the_counts_and_needs_the_kernels_types(recording, tmp_path, capsys):
    path = recording(record(), record("attr/accepts", "load_refused", message="for a reason"))
    assert cli.main(["golden", str(path), "-v"]) == 1
    out = capsys.readouterr().out
    assert "all              2          1              1            0" in out
    assert "612-verd/attr/accepts: verdict\n  recorded  load_refused EINVAL: for a reason\n  ours      attached" in out
    assert cli.main(["golden", str(path), "--category", "target", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == {
        "total": 1, "agree": 1, "false_accepts": 0, "unsupported": 0,
        "by_category": {"target": {"total": 1, "agree": 1, "false_accepts": 0, "unsupported": 0}},
    }  # fmt: skip
    assert cli.main(["golden", str(path), "--btf", str(tmp_path)]) == 2
    assert "has no BTF of kernel 6.12 (6.12.btf.xz); --btf names the folder" in capsys.readouterr().err


@pytest.fixture
def verify(tmp_path, capsys):
    """Runs ``tramp verify`` on a text; gives status and what was printed."""
    (tmp_path / "kernel.btf").write_bytes(written().bytes())

    def run(text, *options, btf=True):
        (tmp_path / "prog.bpf").write_text(text)
        types = ["--kernel-btf", str(tmp_path / "kernel.btf")] if btf else []
        status = cli.main(["verify", str(tmp_path / "prog.bpf"), *types, *options])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_tramp_verify_says_what_a_kernel_would(verify):
    assert verify("r0 = 0\nexit", btf=False) == (0, "prog: accepted\n")
    assert verify("r0 = 0\nexit", "--section", "fentry/vfs_read", "--attach") == (0, "prog: accepted\n")
    assert verify("exit") == (1, "prog: load refused (-EACCES): R0 !read_ok\n")
    sleepable = verify("r0 = 0\nexit", "--section", "fentry.s/vfs_read")
    assert sleepable == (1, "prog: load refused (-EINVAL): vfs_read is not sleepable\n")
    status, said = verify("r0 = 0\nexit", "--section", "raw_tp/none", "--attach")
    assert (status, said) == (1, "prog: attach refused (-ENOENT): no tracepoint 'none'\n")
    status, said = verify("exit", "-v")
    assert status == 1
    assert "0: (95) exit" in said
    status, said = verify("exit", "--json")
    assert json.loads(said)[0]["errname"] == "EACCES"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("r0 = = 0", (), "line 1, column 6"),
        ("exit", ("--section", "nonsense"), "unknown program section name"),
        ("exit", ("--section", "fentry/nobody"), "the kernel's BTF has no nobody"),
        ("exit", ("--flavour", "5.4"), "no kernel release '5.4'"),
    ],
)
def test_tramp_verify_names_bad_input_in_one_line(verify, text, options, said):
    status, printed = verify(text, *options)
    assert status == 2
    assert said in printed
    assert printed.count("\n") == 1


def test_tramp_verify_needs_types_for_a_target(verify):
    assert verify("exit", "--section", "fentry/vfs_read", btf=False)[0] == 2
