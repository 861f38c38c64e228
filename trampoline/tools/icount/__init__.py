"""Counts as a test: baselines of the instructions that paths take, and the differences."""
