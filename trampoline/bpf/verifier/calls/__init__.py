"""Calls of helpers, kfuncs, subprograms and callbacks; return codes."""
