"""Optional dependencies: the error for a missing one names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from trampoline.bpf.errors import TrampolineError

_OWN = ("asm", "emu", "trampoline")


class MissingExtra(TrampolineError, ImportError):
    """A package of an extra that is not installed."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Block that imports packages of the extra `name` (pyproject.toml); `purpose` is the subject of the error.

    Raises MissingExtra if a package outside this project can't be imported.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or not package or package in _OWN:
            raise
        message = f"{purpose} needs {package}, which is not installed: pip install tramplab[{name}]"
        raise MissingExtra(message, name=error.name) from None
