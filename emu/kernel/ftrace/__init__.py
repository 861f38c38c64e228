"""ftrace: patch sites, ops, direct calls, livepatch, trampolines (kernel/trace/ftrace.c)."""
