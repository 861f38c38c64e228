"""Rules of a kernel release for calls of kernel functions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class KfuncRules:
    """One release's calls of kernel functions."""

    trusted_by_default: bool
    """Pointers must be trusted regardless of the function's flags (7.0)."""
    nested_rcu: bool
    """RCU read sections may be nested (after 6.18)."""
    names_registers: bool
    """Messages name an argument by its register instead of its number."""
    void_cast: bool
    """bpf_rdonly_cast to void returns memory (6.17)."""
