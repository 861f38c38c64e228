"""Tasks and operations of one kernel, step by step: what blocks each, int3 entries, quiescent states, grace periods."""
