"""Rules of a kernel release for the verifier."""
