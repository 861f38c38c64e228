"""What releases do differently with calls of kernel functions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class KfuncRules:
    """One release's calls of kernel functions."""

    trusted_by_default: bool
    """Pointers must be trusted whatever the function's flags are (7.0)."""
    nested_rcu: bool
    """RCU read sections may be nested (6.18)."""
    names_registers: bool
    """Messages name an argument by its register, not by its number."""
    void_cast: bool
    """bpf_rdonly_cast to void gives memory (6.17)."""


KFUNC_RULES = {
    "6.1": KfuncRules(trusted_by_default=False, nested_rcu=False, names_registers=False, void_cast=False),
    "6.12": KfuncRules(trusted_by_default=False, nested_rcu=False, names_registers=False, void_cast=False),
    "7.2": KfuncRules(trusted_by_default=True, nested_rcu=True, names_registers=True, void_cast=True),
}
