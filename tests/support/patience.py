"""How long a test waits for what must come. Only what hangs takes that long, also where the machine is busy."""

PATIENCE = 600.0
"""Seconds; less than pytest's own limit, so that a test that waits says for what."""
