"""The count word: the word in front of a program's context (``ctx[-1]``), which trampolines write and programs read."""

COUNT_MASK = 0xFF
"""The low byte: number of argument slots; fsession keeps more above it (7.0)."""
COOKIE_INDEX_SHIFT = 8
"""The second byte: distance of the session cookie from the context, in slots (7.0)."""
SESSION_IS_RETURN = 1 << 63
"""The bit that an fsession program reads on the way out (7.0)."""
