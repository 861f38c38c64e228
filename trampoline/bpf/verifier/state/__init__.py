"""Verifier state: registers, stack, references, environment of a run."""
