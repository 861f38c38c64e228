from collections.abc import Callable, Iterator

import pytest

from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions
from emu.kernel.text.selftest_functions import TEST_FUNCTIONS

ENTRY = EntryLayout(endbr=True, sealed=bytes.fromhex("660f1f00"), padding=16)


@pytest.fixture
def boot() -> Iterator[Callable[..., Kernel]]:
    booted: list[Kernel] = []

    def make(**options) -> Kernel:
        kernel = Kernel(entry=ENTRY, functions=(AssemblyFunctions(TEST_FUNCTIONS),), **options)
        booted.append(kernel)
        return kernel

    yield make
    for kernel in booted:
        kernel.close()


@pytest.fixture
def kernel(boot) -> Kernel:
    return boot()
