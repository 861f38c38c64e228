"""The synthetic kernel: symbols, memory, RCU, text patching, ftrace, modules. Independent of BPF."""
