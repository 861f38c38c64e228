"""The kernel's x86_64 eBPF JIT: the same bytes for the same input (arch/x86/net/bpf_jit_comp.c)."""
