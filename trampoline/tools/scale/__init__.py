"""Attach costs over many functions: table, JSON, plot."""
