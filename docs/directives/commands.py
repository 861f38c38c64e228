"""``{commands}``: a section with the help of each ``tramp`` command."""

import os
from argparse import _SubParsersAction
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive

from trampoline.tools.cli import build_parser


class Commands(Directive):
    """A section for each command, with what ``--help`` prints."""

    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """The sections."""
        os.environ["COLUMNS"] = "80"  # argparse folds its lines to the terminal
        (subparsers,) = (action for action in build_parser()._actions if isinstance(action, _SubParsersAction))
        sections: list[nodes.Node] = []
        for name, parser in subparsers.choices.items():
            section = nodes.section(ids=[f"tramp-{name}"], names=[f"tramp {name}"])
            text = parser.format_help()
            section += [nodes.title(text=f"tramp {name}"), nodes.literal_block(text, text, language="text")]
            sections.append(section)
        return sections
