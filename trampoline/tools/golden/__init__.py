"""Recordings of real kernels, generated again and compared."""
