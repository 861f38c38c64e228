"""Kernel releases: one file each, found by their names. ``v6_12.py`` holds release 6.12 in ``RELEASE``.

A file is imported when its release is asked for, so that the names alone cost nothing.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from re import fullmatch
from typing import TYPE_CHECKING

from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.kernel_version import KernelVersion

if TYPE_CHECKING:
    from trampoline.releases.kernel_release import KernelRelease


def release_names() -> tuple[str, ...]:
    """The names of all releases, oldest first: ``6.12``."""
    found = (fullmatch(r"v(\d+)_(\d+)", module.name) for module in iter_modules(__path__))
    versions = sorted(KernelVersion(int(match[1]), int(match[2])) for match in found if match)
    return tuple(map(str, versions))


def release(name: str) -> "KernelRelease":
    """The release of this name. Raises TrampolineError, which names those that exist, for others."""
    known = release_names()
    if name not in known:
        raise TrampolineError(f"no kernel release {name!r}; there are {', '.join(known)}")
    return _read(name)


def releases() -> tuple["KernelRelease", ...]:
    """All releases, oldest first."""
    return tuple(map(_read, release_names()))


def recorded_releases() -> tuple["KernelRelease", ...]:
    """Those with recordings, oldest first."""
    return tuple(found for found in releases() if found.recorded)


@cache
def _read(name: str) -> "KernelRelease":
    found: KernelRelease = import_module(f"{__name__}.v{name.replace('.', '_')}").RELEASE
    return found
