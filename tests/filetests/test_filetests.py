"""Every file here says what is attached to a function, its listing, and what a call takes (tests/support/filetest.py).

``pytest --filetests-update tests/filetests`` writes what is found into the files.
"""

import re

import pytest

from filetest import FileTestError, parse
from paths import ROOT

FOLDER = ROOT / "tests" / "filetests"
FILES = sorted(FOLDER.glob("*/*.trampoline"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_listing_and_count(path, filetests_update):
    test = parse(path)
    found = test.outcome()
    if filetests_update and found != test.expected:
        path.write_text(test.head + found)
    else:
        assert found == test.expected, "if that is meant: pytest --filetests-update tests/filetests"


HEAD = "release 6.12\nattach fentry\ncall f(1)\nfunction int f(int a)\n"


@pytest.mark.parametrize(
    ("head", "line", "says"),
    [
        (HEAD + "flavour 6.1", 5, "no word 'flavour'; there are release, config, "),
        (HEAD + "release 6.1", 5, "'release' stands there twice"),
        (HEAD + "config", 5, "'config' is no word with its value"),
        (HEAD + "attach fexit quickly", 5, "no flag 'quickly'; there are sleepable, "),
        (HEAD + "attach fexit cookie=five", 5, "'cookie=five': 'five' is no number"),
        (HEAD + "boot call-depth mitigations=off", 5, "no boot option 'mitigations=off'"),
        (HEAD.replace("f(1)", "f(1"), 3, "'f(1' is no call"),
        (HEAD.replace("f(1)", "g(1)"), 3, "calls g, the function is f"),
        (HEAD.replace("int f(int a)", "int f(int"), 4, ""),
        (HEAD.replace("release 6.12\n", ""), 3, "the head says no 'release'"),
        (HEAD.replace("attach fentry\n", ""), 3, "the head attaches nothing"),
    ],
)
def test_a_bad_head_is_an_error_with_file_and_line(tmp_path, head, line, says):
    path = tmp_path / "a.trampoline"
    path.write_text(head + "\n\nlisting\n")
    with pytest.raises(FileTestError, match=f"^{re.escape(f'{path}:{line}: {says}')}"):
        parse(path)


def test_comments_and_flags(tmp_path):
    path = tmp_path / "a.trampoline"
    path.write_text("# why\n" + HEAD + "attach fsession session-cookie cookie=0x10\nboot return-thunk\n\na\n\nb\n")
    test = parse(path)
    assert [(one.kind, set(one.flags), one.cookie) for one in test.programs] == [
        ("fentry", set(), 0), ("fsession", {"session-cookie"}, 16),
    ]  # fmt: skip
    assert (test.boot, test.expected) == ({"return-thunk"}, "a\n\nb\n")
    assert test.head + test.expected == path.read_text()
