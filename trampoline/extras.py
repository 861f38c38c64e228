"""The optional dependencies: which extra of the package to install where one of them is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from trampoline.bpf.errors import TrampolineError

_OWN = ("asm", "emu", "trampoline")


class MissingExtra(TrampolineError, ImportError):
    """A package that only an extra of this project installs is not there."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """A block that imports what the extra `name` (of pyproject.toml) installs, for `purpose`: the subject of the error.

    Raises MissingExtra where a package outside this project can't be imported.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or not package or package in _OWN:
            raise
        message = f"{purpose} needs {package}, which is not installed: pip install tramplab[{name}]"
        raise MissingExtra(message, name=error.name) from None
