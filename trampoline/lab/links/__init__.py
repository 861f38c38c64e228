"""Links, which keep a program attached to its targets. One file for each kind of the kernel's ``struct bpf_link``."""
