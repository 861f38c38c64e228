"""Sphinx directives whose content comes from running tramplab: a page that shows it can't be out of date."""

from sphinx.application import Sphinx

from directives.calls import Calls
from directives.commands import Commands


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directives known to Sphinx."""
    app.add_directive("calls", Calls)
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
