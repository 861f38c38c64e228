"""BPF maps in guest memory, with Python's mapping protocol."""
