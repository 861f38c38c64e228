"""The verifier: the kernel's checks of a program, with its messages (kernel/bpf/verifier.c)."""
