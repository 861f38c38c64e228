"""Sphinx builds the documentation without a warning, and its links lead somewhere."""

import re
import subprocess
import sys

import pytest

from paths import ROOT
from patience import PATIENCE

pytestmark = pytest.mark.slow


def test_sphinx_has_no_complaint(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # What a theme or an extension would fetch from elsewhere is not there for a reader without network.
    for page in (tmp_path / "out").rglob("*.html"):
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text()), page.name


def test_every_page_is_in_a_table_of_contents():
    listed = set(re.findall(r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(), re.M))
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in ROOT.glob("docs/**/*.md")}
    assert pages - listed == {"index"}
