"""Baselines of instruction counts, and comparison of paths with them."""
