"""The laboratory: a kernel with programs, links and calls."""
