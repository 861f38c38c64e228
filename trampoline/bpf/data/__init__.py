"""Lists of kernel functions that the verifier and the loader consult, one per file."""
