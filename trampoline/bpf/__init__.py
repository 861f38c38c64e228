"""BPF programs, from an object file to machine code."""
