"""Comparison with recordings of real kernels, which are regenerated and replayed."""
