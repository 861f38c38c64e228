"""Sphinx: `make docs` builds the pages of this folder into build/docs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from trampoline import __version__  # noqa: E402

project = "tramplab"
author = "tramplab contributors"
project_copyright = "tramplab contributors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "directives"]
html_theme = "furo"
html_title = f"tramplab {release}"
html_show_sourcelink = False
default_role = "code"

myst_enable_extensions = ["attrs_block", "deflist"]
myst_heading_anchors = 3

toc_object_entries = False  # the reference's sidebar has modules; with every method in it pages take minutes
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
