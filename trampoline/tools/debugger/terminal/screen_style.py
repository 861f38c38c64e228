"""Styles of the screen: colours of each role, and the pane layout for each size of terminal.

Only the terminal's own sixteen colours are used, on its own background: they fit light and dark terminals and are
short on the wire. Without colour, reverse, bold and underline remain.
"""

from collections.abc import Mapping

from rich.style import Style

from trampoline.tools.debugger.terminal.styled_text import Role

STYLES: Mapping[Role, Style] = {
    Role.PLAIN: Style(),
    Role.CURRENT: Style(reverse=True),
    Role.CURSOR: Style(underline=True),
    Role.CHANGED: Style(bold=True, color="yellow"),
    Role.FAINT: Style(dim=True),
    Role.NAME: Style(color="cyan"),
    Role.COMMENT: Style(color="green"),
    Role.SOURCE: Style(color="magenta"),
    Role.PHASE: Style(color="blue"),
    Role.BREAKPOINT: Style(bold=True, color="red"),
    Role.WARNING: Style(bold=True, color="red"),
}

LEAST_COLUMNS, LEAST_LINES = 72, 20
"""Smallest terminal that the panes fit into."""
WIDE, TALL = 110, 34
"""Sizes from which on more panes fit side by side, and above each other."""

CSS = """
Screen { layers: base over; }
#status { height: 1; text-style: reverse; }
#message { height: 1; padding: 0 1; }
#command { height: 1; padding: 0 1; }
#command Input { border: none; height: 1; padding: 0; background: ansi_default; }
#panes { layout: grid; grid-size: 2; grid-columns: 1fr 42; grid-rows: 1fr 11; height: 1fr; }
#small { display: none; layer: over; width: 100%; height: 100%; background: ansi_default; }
Pane { border-top: solid ansi_bright_black; border-title-color: ansi_default; border-title-align: left;
       scrollbar-size: 0 0; }
#stack, #chain { padding: 0 1 0 0; }
Pane:focus { border-top: heavy ansi_default; border-title-style: bold; }
#code { column-span: 2; }

#chain, #cpus, #events, #schedule { display: none; }
.-short #chain, .-short #cpus, .-short #events, .-short #schedule { display: block; }
.-short #registers.-away, .-short #chain.-away, .-short #cpus.-away, .-short #events.-away, .-short #schedule.-away
    { display: none; }

.-tall #panes { grid-rows: 1fr 11 6 6; }
.-tall #chain, .-tall #cpus, .-tall #events { display: block; }
.-tall #events { column-span: 2; }
.-scheduled .-tall #schedule { display: block; }
.-scheduled .-tall #events { column-span: 1; }

.-wide.-tall #panes { grid-columns: 1fr 43; grid-rows: 1fr 11 6 6; }
.-wide.-tall #code { column-span: 1; row-span: 2; padding: 0 1 0 0; }

.-narrow-terminal #small, .-low-terminal #small { display: block; }
"""
