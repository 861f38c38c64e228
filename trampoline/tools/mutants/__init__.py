"""Mutants: historic bugs reintroduced one by one, and the campaign that looks for them.
A file for ``tramp mutants --module`` only needs these names: ``Mutant``, ``mutant``, ``replace``, ``wrap``,
``replace_item``.
"""

from trampoline.tools.mutants.mutant import Mutant, mutant
from trampoline.tools.mutants.patch import MutantError, Patch, replace, replace_item, wrap

__all__ = ["Mutant", "MutantError", "Patch", "mutant", "replace", "replace_item", "wrap"]
