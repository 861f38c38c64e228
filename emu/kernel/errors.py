"""Errors of the synthetic kernel, with the kernel's error codes."""

import errno

from emu.errors import EmuError

ENOTSUPP = 524
"""The kernel's internal "not supported" (include/linux/errno.h), missing in Python's ``errno``."""

# Python knows 95 by another name (EOPNOTSUPP of user space).
_KERNEL_NAMES = {ENOTSUPP: "ENOTSUPP", errno.EOPNOTSUPP: "EOPNOTSUPP"}


def errno_name(code: int) -> str:
    """The symbolic name of a positive error code, ``"EBUSY"`` for 16."""
    return _KERNEL_NAMES.get(code) or errno.errorcode.get(code, str(code))


class KernelError(EmuError):
    """An error that the kernel would return; ``errno`` is positive (16 for -EBUSY)."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} (-{errno_name(code)})")
        self.errno = code
        self.what = what

    def __reduce__(self) -> tuple[type["KernelError"], tuple[int, str]]:
        return type(self), (self.errno, self.what)
