"""Systematic schedules: actors, operations, footprints, violations."""
