"""Real kernels for tests: what scripts/fetch-kernels put into the cache."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emu.vmlinux.unbooted_kernel import UnbootedKernel

_PACKAGES = {
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


@pytest.fixture(scope="session")
def kernel_folder() -> Callable[[str], Path]:
    """The unpacked package of a kernel by its name here; the newest of several."""

    def find(name: str) -> Path:
        found = sorted(
            folder
            for folder in kernels_folder().glob(_PACKAGES[name])
            if ("cloud" in folder.name) is ("cloud" in _PACKAGES[name])
        )
        if not found:
            pytest.skip(
                f"no kernel {name} in {kernels_folder()}: get it with scripts/fetch-kernels (see its first lines)"
            )
        return found[-1]

    return find


@pytest.fixture(scope="session")
def opened(
    kernel_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], UnbootedKernel]]:
    """An initialised kernel by its name here; each once a session. Leave it as it was: ``with kernel.trial()``."""
    cache = tmp_path_factory.mktemp("prepared")
    made: dict[str, UnbootedKernel] = {}

    def open_(name: str) -> UnbootedKernel:
        if name not in made:
            made[name] = UnbootedKernel.open(kernel_folder(name), cache=cache)
        return made[name]

    yield open_
    for kernel in made.values():
        kernel.close()
