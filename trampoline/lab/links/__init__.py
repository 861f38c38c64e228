"""Links: what holds a program on what it is attached to. One file for each kind of the kernel's ``struct bpf_link``."""
