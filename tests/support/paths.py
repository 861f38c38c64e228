"""Folders that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FIXTURES, SELFTEST_FOLDER = TESTS / "fixtures", TESTS / "selftests"
