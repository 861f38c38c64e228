"""Errors of the BPF machinery: one root. What the kernel itself would refuse is an
``emu.kernel.errors.KernelError``.
"""

from emu.kernel.errors import ENOTSUPP, KernelError, errno_name

__all__ = ["ENOTSUPP", "GoldenError", "KernelError", "PrototypeError", "TrampolineError", "errno_name"]


class TrampolineError(Exception):
    """Root of this package's errors."""


class PrototypeError(TrampolineError):
    """A C prototype that cannot be read, or that contradicts the function's own."""


class GoldenError(TrampolineError):
    """A golden file that is damaged or is not one."""
