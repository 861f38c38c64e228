"""Instruction counts of designs beside measured figures."""
