"""The count word, directly below a program's context (``ctx[-1]``): written by trampolines, read by programs."""

COUNT_MASK = 0xFF
"""The low byte: number of argument slots; fsession keeps more above it (7.0)."""
COOKIE_INDEX_SHIFT = 8
"""The second byte: distance of the session cookie from the context, in slots (7.0)."""
SESSION_IS_RETURN = 1 << 63
"""The bit that an fsession program reads at the function's exit (7.0)."""
