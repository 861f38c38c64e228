"""Metadata of traced functions (kfunc_md) in guest memory: storage, look-up by guest code, lifetime."""
