"""HTML page: one file with everything in it, for a screen or a phone, without network."""

from collections.abc import Iterable
from html import escape
from importlib import resources


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """A page of sections that are HTML already; the titles are plain text."""
    files = resources.files("trampoline.tools.report")
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="tramplab">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="soft">{escape(subtitle)}</p>',
            *sections,
            "</main>",
            f"<script>\n{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )
