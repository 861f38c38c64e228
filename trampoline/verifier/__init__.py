"""verifier-lite: what the kernel would say to a tracing program, and what the program touches."""
