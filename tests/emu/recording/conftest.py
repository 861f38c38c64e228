from collections.abc import Callable, Iterator

import pytest

from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.kernel.text.selftest_functions import TEST_FUNCTIONS

ENTRY = EntryLayout(endbr=False, sealed=bytes.fromhex("660f1f00"), padding=0)


class Traced:
    """A kernel with functions of the test's own."""

    def __init__(self, **options) -> None:
        self.kernel = Kernel(entry=ENTRY, functions=(AssemblyFunctions(TEST_FUNCTIONS),), **options)
        self.machine = self.kernel.machine

    def place(self, **texts: str) -> None:
        """Functions by name; each may call those before it."""
        for name, text in texts.items():
            self.kernel.add_functions(FunctionText(name, text, traceable=False))

    def host(self, name: str, do) -> None:
        self.kernel.kallsyms.add(name, self.machine.host_call(name, do), 1)


@pytest.fixture
def boot() -> Iterator[Callable[..., Traced]]:
    made: list[Traced] = []

    def make(**options) -> Traced:
        made.append(Traced(**options))
        return made[-1]

    yield make
    for one in made:
        one.kernel.close()


@pytest.fixture
def traced(boot) -> Traced:
    return boot()
