"""Systematic schedules: which vCPU or task goes on next, at every point where it matters. Knows nothing of BPF."""
