"""The file: what is written can be read, what is damaged is refused with its line, the count lines decide."""

from pathlib import Path as File

import pytest

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.icount.baseline import Baseline, format_baseline
from trampoline.tools.icount.compare import CountVerdict, compare, compare_all, update_of
from trampoline.tools.icount.counted_path import CountedPath, PathPiece, PhaseCode
from trampoline.tools.icount.errors import BaselineError
from trampoline.tools.icount.explain import explain, explain_report, side_by_side
from trampoline.tools.icount.ledger import CheckLedger, CheckRecord
from trampoline.tools.icount.limits import Limit, Limits

FILE = File("test_x.icount")
CALLEE = PathPiece("callee", ("push rbx", "3x inc rax", "ret"))
IMAGE = PathPiece("image of f", ("call callee", "test rax, rax"))
KERNEL = {"flavour": "6.12", "config": "lazy", "design": "batched"}


def a_path(*, enter=(IMAGE, CALLEE), number=6, leave=1, unbalanced=0, conditions=KERNEL):
    phases = {"enter": PhaseCode(number, tuple(enter)), "leave": PhaseCode(leave, (PathPiece("image of f", ("ret",)),))}
    return CountedPath(number + leave, unbalanced, phases, conditions)


def written(**paths):
    return format_baseline({name: (path, Limits()) for name, path in paths.items()}, "pytest --icount-update")


def entry(path=None, text=None):
    return Baseline.parse(text or written(name=path or a_path()), FILE).entries["name"]


def test_the_file_is_what_the_page_says():
    text = format_baseline(
        {"f(1, \"a = b\") on 6.12": (a_path(unbalanced=1), Limits.parse("0.5%", 3)), "a": (a_path(), Limits())}, "me"
    )
    assert text == f"""\
# tramplab counts, format 1
# made by: me
#
# code {CALLEE.digest} callee
#   push rbx
#   3x inc rax
#   ret
# code {IMAGE.digest} image of f
#   call callee
#   test rax, rax
# code {PathPiece("image of f", ("ret",)).digest} image of f
#   ret
#
# path a
#   flavour=6.12 config=lazy design=batched unbalanced=0
#   phases enter=6:{IMAGE.digest}+{CALLEE.digest} leave=1:{PathPiece("image of f", ("ret",)).digest}
# path f(1, "a = b") on 6.12
#   flavour=6.12 config=lazy design=batched unbalanced=1 soft=0.5% hard=3
#   phases enter=6:{IMAGE.digest}+{CALLEE.digest} leave=1:{PathPiece("image of f", ("ret",)).digest}

a = 7
f(1, "a = b") on 6.12 = 7
"""
    read = Baseline.parse(text, FILE)
    found = read.entries['f(1, "a = b") on 6.12']
    assert (found.path, found.limits, found.line) == (a_path(unbalanced=1), Limits.parse("0.5%", 3), 22)
    paths = {name: (entry.path, entry.limits) for name, entry in read.entries.items()}
    assert format_baseline(paths, read.made_by) == text


def test_the_order_does_not_depend_on_the_order_of_checks():
    one, other = a_path(), a_path(enter=(CALLEE,), number=5)
    assert written(x=one, y=other) == written(y=other, x=one)


@pytest.mark.parametrize("name", ["", " a", "a ", "# a", "a\nb", "a\x1b"])
def test_names_that_do_not_fit_on_a_line(name):
    with pytest.raises(TrampolineError, match="cannot name a count"):
        written(**{name: a_path()})


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("# tramplab counts, format 1\n", "", None, "not a baseline of counts"),
        ("format 1", "format 2", 1, "format 2; this version reads 1"),
        ("name = 7", "name = seven", 18, "'name = seven' is not NAME = N"),
        ("name = 7", "name = -7", 18, "is not NAME = N"),
        ("name = 7", "<<<<<<< ours\nname = 7", 18, "is not NAME = N"),
        ("name = 7", "name = 7\nname = 8", 19, "name already has a count, in line 18"),
        ("unbalanced=0", "unbalanced=x", 14, "unbalanced=x"),
        ("unbalanced=0", "unbalanced", 14, "'unbalanced' is not KEY=VALUE"),
        ("unbalanced=0", "unbalanced=0 soft=2%", 14, "soft=2%: without"),
        ("unbalanced=0", "unbalanced=0 hard=x", 14, "'x' is not a limit"),
        ("enter=6:", "enter=six:", 14, "is not PHASE=N:CODE"),
        (f"# code {CALLEE.digest}", "# code 00000000", 14, f"no code {CALLEE.digest}"),
        (f"# code {CALLEE.digest}", "# code ", 4, "is neither code nor a path"),
        ("# made by: pytest --icount-update\n", "#   loose\n", 2, "belongs to no path"),
        ("# path name", "# path name\n# path name", 15, "path name is repeated"),
    ],
)
def test_damage_is_named_with_its_line(old, new, line, reason):
    text = written(name=a_path())
    assert old in text
    with pytest.raises(BaselineError) as error:
        Baseline.parse(text.replace(old, new, 1), FILE)
    assert reason in error.value.reason
    assert error.value.line == line
    assert str(error.value).startswith(f"test_x.icount{'' if line is None else f':{line}'}: ")


def test_what_is_no_file_or_no_text(tmp_path):
    with pytest.raises(BaselineError, match="no such baseline"):
        Baseline.read(tmp_path / "none")
    with pytest.raises(BaselineError, match="Is a directory"):
        Baseline.read(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    with pytest.raises(BaselineError, match="not a baseline"):
        Baseline.read(tmp_path / "bytes")


def test_the_count_lines_decide_not_the_header():
    text = written(name=a_path()).replace("name = 7", "name = 6\nbare = 7")
    edited, bare = (Baseline.parse(text, FILE).entries[name] for name in ("name", "bare"))
    found = compare("name", edited, a_path())
    assert (found.verdict, found.difference) == (CountVerdict.LONGER, 1)
    assert "header add up to 7, its line 18 says 6: it was changed by hand" in explain([found])
    assert bare.path is None
    assert compare("bare", bare, a_path()).verdict is CountVerdict.EQUAL
    message = explain([compare("bare", bare, a_path(number=7))])
    assert "whole path                7      8      +1" in message
    assert "unbalanced returns        -      0" in message
    assert "written by hand" in message


@pytest.mark.parametrize(
    ("new", "limits", "verdict"),
    [
        ({}, (), CountVerdict.EQUAL),
        ({"enter": (CALLEE, IMAGE)}, (), CountVerdict.EQUAL),  # other code, as long
        ({"number": 7}, (), CountVerdict.LONGER),
        ({"number": 5}, (), CountVerdict.SHORTER),
        ({"number": 5, "leave": 2}, (), CountVerdict.MOVED),
        ({"number": 7}, (None, 1), CountVerdict.BEYOND_SOFT),
        ({"number": 5}, (None, 1), CountVerdict.BEYOND_SOFT),
        ({"number": 7}, (1, 1), CountVerdict.WITHIN_SOFT),
        ({"number": 5}, (1, 1), CountVerdict.WITHIN_SOFT),
        ({"number": 8}, (1, 2), CountVerdict.BEYOND_SOFT),
        ({"number": 4}, (1, 2), CountVerdict.BEYOND_SOFT),
        ({"number": 9}, (1, 2), CountVerdict.LONGER),
        ({"number": 3}, (1, 2), CountVerdict.SHORTER),
        ({"number": 7}, (None, "14.2%"), CountVerdict.LONGER),  # of 7: 0.994
        ({"number": 7}, (None, "14.3%"), CountVerdict.BEYOND_SOFT),  # 1.001
        ({"number": 5}, (None, "14.2%"), CountVerdict.SHORTER),
        ({"number": 5}, (None, "14.3%"), CountVerdict.BEYOND_SOFT),
        ({"unbalanced": 2}, (None, 100), CountVerdict.UNBALANCED),
        ({"unbalanced": 0}, (None, 100), CountVerdict.UNBALANCED),
        ({"unbalanced": 0, "number": 7}, (1, 1), CountVerdict.UNBALANCED),
        ({"unbalanced": 0, "number": 7}, (), CountVerdict.LONGER),
        ({"unbalanced": 2, "number": 5}, (), CountVerdict.SHORTER),
    ],
)
def test_verdicts(new, limits, verdict):
    old = entry(a_path(unbalanced=1))
    found = compare("name", old, a_path(**({"unbalanced": 1} | new)), Limits.parse(*limits))
    assert found.verdict is verdict
    assert found.fails == (verdict in (CountVerdict.LONGER, CountVerdict.SHORTER, CountVerdict.UNBALANCED))
    assert found.warns == (verdict is CountVerdict.BEYOND_SOFT)


@pytest.mark.parametrize(
    ("new", "limits", "first", "last"),
    [
        ({"number": 7}, (), "name: longer: 7 -> 8 instructions (+1)", "If this is intended, update the baseline"),
        ({"number": 5}, (), "name: shorter: 7 -> 6 instructions (-1)", "The baseline needs an update"),
        (
            {"unbalanced": 1},
            (),
            "name: other unbalanced returns: 7 -> 7 instructions (+0), unbalanced returns 0 -> 1 (+1)",
            "If this is intended, update the baseline",
        ),
        (
            {"number": 5},
            (None, 1),
            "warning: name: shorter, beyond its soft limit (soft 0, hard 1): 7 -> 6 instructions (-1)",
            "The baseline needs an update",
        ),
        (
            {"number": 7},
            (1, 1),
            "name: longer, within its soft limit (soft 1, hard 1): 7 -> 8 instructions (+1)",
            "The baseline needs an update",
        ),
        (
            {"number": 5, "leave": 2},
            (),
            "name: as many instructions, in other phases: 7 -> 7 instructions (+0)",
            "The baseline needs an update",
        ),
    ],
)
def test_what_a_run_says_first_and_last(new, limits, first, last):
    report = compare_all({"name": entry()}, {"name": a_path(**new)}, Limits.parse(*limits))
    lines = explain_report(report, "file", "make it").splitlines()
    assert (lines[0], lines[-1]) == (first, f"{last}: make it")
    assert ("  whole path" in "\n".join(lines)) == bool(report.failures)


def test_the_limits_of_the_file_hold_unless_others_are_given():
    text = format_baseline({"name": (a_path(), Limits.parse(None, 5))}, "me")
    old = entry(text=text)
    assert compare("name", old, a_path(number=7)).verdict is CountVerdict.BEYOND_SOFT
    assert compare("name", old, a_path(number=7), Limits()).verdict is CountVerdict.LONGER


@pytest.mark.parametrize("value", ["", "x", "-1", "%", "1.5", "1%%", True, 1.5])
def test_what_is_no_limit(value):
    with pytest.raises(TrampolineError, match="is not a limit"):
        Limit.parse(value)


def test_a_soft_limit_needs_a_hard_one():
    with pytest.raises(TrampolineError, match="soft=1: without"):
        Limits.parse(1)


def test_a_run_beside_its_baseline():
    entries = Baseline.parse(written(a=a_path(), b=a_path(), c=a_path()), FILE).entries
    paths = {"a": a_path(), "b": a_path(conditions=KERNEL | {"flavour": "7.2"}), "new": a_path()}
    report = compare_all(entries, paths)
    assert [finding.name for finding in report.findings] == ["a"]
    assert (report.missing, report.stale) == (["new"], ["c"])
    assert report.foreign == {"b": ["flavour 6.12, not 7.2"]}
    assert compare_all(entries, paths, partial=True).stale == []


def test_an_explanation_has_every_phase_and_the_code_side_by_side():
    longer = PathPiece("callee", ("push rbx", "nop", "3x inc rax", "ret"))
    found = compare("name", entry(), a_path(enter=(IMAGE, longer), number=7, unbalanced=1))
    assert explain([found]) == """\
name: longer: 7 -> 8 instructions (+1), unbalanced returns 0 -> 1 (+1)
  flavour 6.12, config lazy, design batched
                          old    new
  whole path                7      8      +1
    enter                   6      7      +1
    leave                   1      1
  unbalanced returns        0      1      +1

phase enter, code that changed:
  callee, old   callee, new
  push rbx      push rbx
              > nop
  3x inc rax    3x inc rax
  ret           ret"""


def test_code_that_came_and_went():
    found = compare("name", entry(), a_path(enter=(IMAGE, PathPiece("other", ("nop",))), number=9))
    message = explain([found])
    assert "\n  push rbx    <\n" in message
    assert "\n             > nop" in message


def test_what_is_alike_far_from_a_change_is_left_out():
    old = [f"i{n}" for n in range(20)]
    lines = list(side_by_side(old, [*old[:10], "x", *old[11:]], "old", "new"))
    assert lines[1].split() == ["...", "7", "alike", "..."]
    assert [line.split() for line in lines[2:]] == [
        *([f"i{n}"] * 2 for n in (7, 8, 9)), ["i10", "|", "x"], *([f"i{n}"] * 2 for n in (11, 12, 13)),
    ]  # fmt: skip


def test_what_an_update_changes():
    entries = Baseline.parse(written(a=a_path(), b=a_path(), c=a_path(), d=a_path()), FILE).entries
    change = update_of(
        entries,
        {
            "a": (a_path(number=8), Limits()),
            "b": (a_path(unbalanced=1), Limits()),
            "c": (a_path(), Limits()),
            "e": (a_path(), Limits()),
        },
    )
    assert change.lines() == [
        "a: 7 -> 9 (+2)",
        "d: gone, 7 before",
        "e: new, 7",
        "b: the same number, other phases, code, limits or kernel",
    ]
    assert not update_of(entries, {name: (entry.path, entry.limits) for name, entry in entries.items()})


def test_a_path_goes_between_processes():
    mine, other = CheckLedger(File()), CheckLedger(File(), notes=["a note"])
    other.add("test_a.py", "name", CheckRecord(a_path(unbalanced=2), Limits(), "test"))
    mine.take_in(other.packed(whole=True))
    assert (mine.records, mine.checked, mine.notes) == (other.records, {}, ["a note"])
    mine = CheckLedger(File())
    mine.take_in(other.packed(whole=False))
    assert (mine.records, mine.checked) == ({}, {"test_a.py": {"name"}})
