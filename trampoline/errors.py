"""Errors of the BPF machinery: one root. What the kernel itself would refuse is an
``emu.kernel.errors.KernelError``.
"""

from emu.kernel.errors import ENOTSUPP, KernelError, errno_name

__all__ = [
    "ENOTSUPP",
    "BtfError",
    "GoldenError",
    "KernelError",
    "Oops",
    "PrototypeError",
    "TrampolineError",
    "errno_name",
]


class TrampolineError(Exception):
    """Root of this package's errors."""


class Oops(TrampolineError):
    """Process context did what would have brought a kernel down, because of a defect that was asked for."""


class PrototypeError(TrampolineError):
    """A C prototype that cannot be read, or that contradicts the function's own."""


class GoldenError(TrampolineError):
    """A golden file that is damaged or is not one."""


class BtfError(TrampolineError):
    """BTF that is damaged, foreign or of a form that cannot be read, or a type asked for that it does not hold.

    ``offset`` is the place in the uncompressed BTF in bytes; None where the fault has no place there.
    """

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"BTF at byte 0x{offset:x}: {reason}")
        self.reason = reason
        self.offset = offset
