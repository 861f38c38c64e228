"""The page for contributors leads to the places that it names."""

import re

import pytest

from paths import ROOT

PAGE = ROOT / "docs" / "contributing.md"
ROW = r"^\| (?P<question>[^|]+) \| \[[^\]]+\]\((?P<path>[^)]+)\) \| (?P<terms>[^|]+) \|$"
ROWS = re.findall(ROW, PAGE.read_text(), re.M)
FLOORS = re.findall(r"^\| (`[^|]+) \| [^|]+ \|$", PAGE.read_text().split("## Where")[0], re.M)


def test_there_are_questions_and_floors():
    assert len(ROWS) >= 7
    assert len(FLOORS) >= 7


@pytest.mark.parametrize(("question", "path", "terms"), ROWS, ids=[row[0] for row in ROWS])
def test_a_question_is_answered_in_two_hops(question, path, terms):
    """The first hop is the page, the second the file, which holds every term."""
    file = (PAGE.parent / path).resolve()
    assert file.is_file(), f"{question}: {path} is not there"
    text = file.read_text()
    missing = [term for term in re.findall(r"`([^`]+)`", terms) if term not in text]
    assert not missing, f"{question}: {path} does not mention {missing}"


@pytest.mark.parametrize("floor", [name for names in FLOORS for name in re.findall(r"`([\w/]+)`", names)])
def test_each_floor_is_a_folder_that_says_what_it_is(floor):
    folder = ROOT / floor if (ROOT / floor).is_dir() else ROOT / "trampoline" / floor
    assert folder.is_dir()
    assert '"""' in (folder / "__init__.py").read_text()[:3]


def test_few_modules_stand_directly_in_the_package():
    modules = {file.name for file in (ROOT / "trampoline").glob("*.py")}
    assert len(modules - {"__init__.py", "__main__.py"}) <= 10
