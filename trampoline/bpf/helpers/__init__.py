"""Helpers and kfuncs: prototypes, availability by program type and release."""
