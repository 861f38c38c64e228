"""Kernel modules: objects from other compilers, loaded and relocated."""
