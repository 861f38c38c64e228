"""What kernels do to a program between verifying and compiling it."""
