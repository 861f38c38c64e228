"""Recordings of real kernels ("golden files"), and the comparison of what we make with them."""
