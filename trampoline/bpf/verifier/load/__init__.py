"""Entry points: BPF_PROG_LOAD and BPF_LINK_CREATE."""
