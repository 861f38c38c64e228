"""Mutants: historic bugs put back one by one, and the hunt for them with sequences and schedules.

A file for ``tramp mutants --module`` needs no more than this: ``Mutant``, ``mutant``, ``replace``, ``wrap``,
``replace_item``.
"""

from trampoline.tools.mutants.mutant import Mutant, mutant
from trampoline.tools.mutants.patch import MutantError, Patch, replace, replace_item, wrap

__all__ = ["Mutant", "MutantError", "Patch", "mutant", "replace", "replace_item", "wrap"]
