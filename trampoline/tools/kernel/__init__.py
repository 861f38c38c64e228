"""Real kernels by their file: facts, calls, costs of the ways in, verdicts."""
