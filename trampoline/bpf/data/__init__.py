"""Lists of kernel functions that the verifier and the loader consult, one file a list."""
