"""Attach and detach: trampolines of functions, ftrace sites, multi links (kernel/bpf/trampoline.c)."""
