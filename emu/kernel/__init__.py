"""The synthetic kernel: symbols, memory, RCU, text patching, ftrace, modules. Knows nothing of BPF."""
