"""Tasks and operations of one kernel, step by step: blocking, int3 entries, quiescent states, grace periods."""
