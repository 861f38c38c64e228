"""gdb's remote serial protocol over a debugger of the synthetic kernel, and the symbol file that gdb reads."""
