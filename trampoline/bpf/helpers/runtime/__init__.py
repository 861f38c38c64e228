"""Implementations of helpers: kernel functions that programs call, as guest code or Python."""
