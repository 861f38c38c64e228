"""What the tests of kernel rules share: an operation and the error code that it is refused with."""

import pytest

from emu.kernel.errors import KernelError


def refused(code, operation, *args, **options):
    """The operation is refused with this error code."""
    with pytest.raises(KernelError) as caught:
        operation(*args, **options)
    assert caught.value.errno == code, caught.value


def errno_of(operation):
    """The error code that an operation is refused with, 0 where it is not."""
    try:
        operation()
    except KernelError as error:
        return error.errno
    return 0
