from collections.abc import Callable, Iterator

import pytest
from kernel_releases import RELEASES

from asm import assemble
from emu.kernel.kernel import Kernel
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.kfunc_md.lookup import Entered

NR_FUNCTIONS = 64
FUNCTIONS = tuple(FunctionText(f"traced{i}", "xor eax, eax\nret", f"int traced{i}(void)") for i in range(NR_FUNCTIONS))
NOT_FOUND = 0xDEAD


class Bed:
    """A kernel with functions to trace, and its metadata's look-up as a guest function."""

    def __init__(self, flavour: str = "6.12", **options) -> None:
        self.kernel = Kernel(entry=RELEASES[flavour].entry, functions=(AssemblyFunctions(FUNCTIONS),), **options)
        self.functions = [self.kernel.functions[f.name].address for f in FUNCTIONS]

    def place(self, text: str, symbols: dict[str, int], name: str = "lookup") -> int:
        address = self.kernel.execmem.alloc(1024, name)
        self.kernel.execmem.fill(assemble(text, address, {**self.kernel.symbols, **symbols}, name=name))
        return address

    def lookup(self, backend, entered: Entered | None = None, tail: str = "", **options) -> int:
        """A guest function: the function's address in rdi, metadata or NOT_FOUND in rax."""
        text = backend.lookup(entered or Entered(), label="lookup", missing="none", **options)
        return self.place(f"{text}\n{tail}\n    ret\nnone:\n    mov eax, {NOT_FOUND}\n    ret\n", backend.symbols)

    def run(self, code: int, *args: int):
        return self.kernel.call(code, *args)

    @property
    def vcpu(self):
        return self.kernel.machine.vcpus[0]


@pytest.fixture
def make_bed() -> Iterator[Callable[..., Bed]]:
    beds: list[Bed] = []

    def make(*args, **options) -> Bed:
        beds.append(Bed(*args, **options))
        return beds[-1]

    yield make
    for bed in beds:
        bed.kernel.close()


@pytest.fixture
def bed(make_bed) -> Bed:
    return make_bed()
