"""An x86_64 machine and a synthetic kernel on it: memory, CPUs, tasks, exact counts, patching. Knows nothing of BPF."""
