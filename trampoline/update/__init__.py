"""Attach and detach: trampolines of functions, ftrace sites, multi links."""
