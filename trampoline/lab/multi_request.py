"""Checks of a multi link request before any look-up: its functions, cookies and counts."""

from collections.abc import Sequence
from errno import E2BIG, EFAULT, EINVAL, EOPNOTSUPP

from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.lab.functions import KernelFunction, is_glob


def check_cookie(cookie: int) -> None:
    """Raises TrampolineError if a cookie is not an unsigned 64-bit number."""
    if not 0 <= cookie < 1 << 64:
        raise TrampolineError(f"a cookie is an unsigned 64-bit number, not {cookie:#x}")


def check_wanted(functions: Sequence[object], cookies: Sequence[int] | None) -> None:
    """Checks the functions and cookies of a request.

    KernelError: -EOPNOTSUPP for a BPF program among the functions, -EFAULT for a value that can't name a function,
    -EINVAL for a glob together with cookies. TrampolineError for a string instead of a list, and for a cookie that is
    not an unsigned 64-bit number.
    """
    if isinstance(functions, str):
        raise TrampolineError(f"functions must be a list: [{functions!r}]")
    for function in functions:
        if isinstance(function, BpfProg):
            raise KernelError(EOPNOTSUPP, f"{function.name} is a BPF program; multi links take kernel functions")
        if not isinstance(function, str | int | KernelFunction):
            raise KernelError(EFAULT, f"{function!r} is not a function's name, address or type id")
        if cookies is not None and isinstance(function, str) and is_glob(function):
            raise KernelError(EINVAL, f"{function} may match several functions; cookies need one name for each")
    for cookie in cookies or ():
        check_cookie(cookie)


def check_multi(count: int, cookies: int | None, *, most: int) -> None:
    """Checks the counts of a request. KernelError: -EINVAL for no function or a wrong number of cookies; -E2BIG beyond
    ``most``.
    """
    if not count:
        raise KernelError(EINVAL, "a multi link needs a function")
    if count > most:
        raise KernelError(E2BIG, f"{count} functions; a multi link takes at most {most}")
    if cookies is not None and cookies != count:
        raise KernelError(EINVAL, f"{cookies} cookies for {count} functions")
