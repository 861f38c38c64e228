"""Limit of a test's waits. Only a hang reaches it, also on a busy machine."""

PATIENCE = 600.0
"""Seconds; less than pytest's own limit, so that the wait itself fails, with its own message."""
