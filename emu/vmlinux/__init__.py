"""A real kernel's own code on the machine: a stock ``vmlinuz``, unbooted, or the memory of a booted one."""
