"""ELF files: a reader of sections, symbols and relocations, and a writer."""
