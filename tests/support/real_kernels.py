"""Files of real kernels, which scripts/fetch-kernels puts into the cache. None is in the repository."""

import os
from pathlib import Path

import pytest

PACKAGES = {
    "6.1": "linux-image-6.1.*-cloud-amd64",
    "6.12": "linux-image-6.12.*-cloud-amd64",
    "7": "linux-binary-7.*-cloud-amd64",
    "6.12-full": "linux-image-6.12.*[0-9]-amd64",
    "6.12-rt": "linux-image-6.12.*-rt-amd64",
    "7-full": "linux-binary-7.*[0-9]-amd64",
    "7-rt": "linux-binary-7.*-rt-amd64",
}


def kernels_folder() -> Path:
    """The cache of scripts/fetch-kernels."""
    named = os.environ.get("TRAMPLAB_KERNELS")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tramplab" / "kernels"


def kernel_folder(name: str) -> Path:
    """The unpacked package of a kernel by its name here, the newest of several; skips the test where there is none."""
    found = sorted(
        folder
        for folder in kernels_folder().glob(PACKAGES[name])
        if ("cloud" in folder.name) is ("cloud" in PACKAGES[name])
    )
    if not found:
        pytest.skip(f"no kernel {name} in {kernels_folder()}: get it with scripts/fetch-kernels (see its first lines)")
    return found[-1]
