"""Passes before the walk: instruction fields, subprograms, control flow, func_info."""
