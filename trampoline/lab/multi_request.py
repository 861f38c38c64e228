"""Checks of the request for a multi link: its functions, cookies and counts, before anything is looked up."""

from collections.abc import Sequence
from errno import E2BIG, EFAULT, EINVAL, EOPNOTSUPP

from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.lab.functions import KernelFunction, is_glob


def check_cookie(cookie: int) -> None:
    """Raise TrampolineError for what is no unsigned 64-bit number."""
    if not 0 <= cookie < 1 << 64:
        raise TrampolineError(f"a cookie is an unsigned 64-bit number, not {cookie:#x}")


def check_wanted(functions: Sequence[object], cookies: Sequence[int] | None) -> None:
    """Check the functions and cookies of a request.

    KernelError: -EOPNOTSUPP for a BPF program among the functions, -EFAULT for what can't be read as one, -EINVAL for a
    glob where there are cookies. TrampolineError for one text instead of several, and for a cookie that is no unsigned
    64-bit number.
    """
    if isinstance(functions, str):
        raise TrampolineError(f"several functions are wanted: [{functions!r}]")
    for function in functions:
        if isinstance(function, BpfProg):
            raise KernelError(EOPNOTSUPP, f"{function.name} is a program: multi links are on kernel functions")
        if not isinstance(function, str | int | KernelFunction):
            raise KernelError(EFAULT, f"{function!r} is no function's name, address or type id")
        if cookies is not None and isinstance(function, str) and is_glob(function):
            raise KernelError(EINVAL, f"{function} may be any number of functions: their cookies can't be told apart")
    for cookie in cookies or ():
        check_cookie(cookie)


def check_multi(count: int, cookies: int | None, *, most: int) -> None:
    """Check the counts of a request: -EINVAL for none, and for cookies that don't match; -E2BIG beyond ``most``."""
    if not count:
        raise KernelError(EINVAL, "a multi link needs a function")
    if count > most:
        raise KernelError(E2BIG, f"{count} functions; a multi link takes {most}")
    if cookies is not None and cookies != count:
        raise KernelError(EINVAL, f"{cookies} cookies for {count} functions")
