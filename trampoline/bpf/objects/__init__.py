"""BPF objects of clang: from an ELF file to programs and maps, as libbpf prepares them."""
