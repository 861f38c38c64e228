"""A machine with a page of everything, and functions placed in it from assembly text."""

import pytest

from asm import assemble
from emu.machine.machine import Machine, Prot

TEXT_PAGES, DATA_PAGES = 8, 4


class Bench:
    """A machine with text, data and per-CPU areas; ``place`` puts functions into its text."""

    def __init__(self, **options):
        options.setdefault("ram_bytes", 4 << 20)
        self.machine = Machine(**options)
        layout = self.machine.layout
        self.text, self.data = layout.text, layout.direct_map
        self.machine.map(self.text, TEXT_PAGES * 4096, Prot.READ | Prot.EXEC, name="text")
        self.machine.map(self.data, DATA_PAGES * 4096, Prot.READ | Prot.WRITE, name="data")
        for vcpu in self.machine.vcpus:
            vcpu.gs_base = layout.percpu + vcpu.index * 4096
            self.machine.map(vcpu.gs_base, 4096, Prot.READ | Prot.WRITE, name=f"per-CPU area {vcpu.index}")
        self.cpu = self.machine.vcpus[0]
        self._next = self.text

    def place(self, text, at=None, **symbols):
        """Guest address of a function."""
        address = self._next if at is None else at
        image = assemble(text, address, symbols)
        self.machine.load(address, image.code)
        if at is None:
            self._next = (address + len(image) + 15) & -16
        return address

    def image(self, text, **symbols):
        """A function whose listing the machine knows."""
        address = self._next
        image = assemble(text, address, symbols, name="image")
        self.machine.load(address, image.code)
        self.machine.add_image(image)
        self._next = (address + len(image) + 15) & -16
        return image

    def constant(self, address, value):
        """Code that returns a constant: ``mov eax, value; ret`` (6 bytes)."""
        return assemble(f"mov eax, {value}\nret", address).code


@pytest.fixture
def make():
    """Makes benches and closes them."""
    made = []

    def make_bench(**options):
        made.append(Bench(**options))
        return made[-1]

    yield make_bench
    for bench in made:
        bench.machine.close()


@pytest.fixture
def bench(make):
    return make()


@pytest.fixture(scope="module")
def two_cpus():
    """A bench with two vCPUs for a whole module: property tests clean up after themselves."""
    bench = Bench(vcpus=2)
    yield bench
    bench.machine.close()
