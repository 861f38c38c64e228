"""BPF objects built by clang: from an ELF file to programs and maps, prepared as libbpf does."""
