"""Annotated listings of trampolines and compiled programs."""
