"""x86_64 trampoline images (arch_prepare_bpf_trampoline())."""
