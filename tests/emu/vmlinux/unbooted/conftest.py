"""Real kernels for tests: what scripts/fetch-kernels put into the cache."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import real_kernels

from emu.vmlinux.unbooted_kernel import UnbootedKernel


@pytest.fixture(scope="session")
def kernel_folder() -> Callable[[str], Path]:
    """The unpacked package of a kernel by its name here; the newest of several."""
    return real_kernels.kernel_folder


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
