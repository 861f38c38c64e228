"""The synthetic kernel on the machine: symbols, functions, modules, processes in kernel context, text patching."""
