"""gdb's remote protocol: server, packets, symbol files."""
