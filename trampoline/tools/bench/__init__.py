"""Instruction counts of designs, with measured figures for comparison."""
