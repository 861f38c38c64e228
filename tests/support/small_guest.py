"""A guest of a few functions for the machine that runs real kernels: written by hand, in 4 MiB of RAM."""

import struct

from asm import assemble
from dump_writer import Tables, elf_core
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.elf_core import ElfCore
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.machine import CpuSetup, KernelMachine
from emu.vmlinux.page_walk import PageTables

KERNEL = 0xFFFFFFFF81000000
STACK_TOP = KERNEL + 0x180000
IDT, GDT, TSS, GS = KERNEL + 0x100000, KERNEL + 0x101000, KERNEL + 0x102000, KERNEL + 0x110000
READ_ONLY = 0xFFFFFFFF82000000
ABSENT = 0xFFFFFFFF83000000
_CODE64, _DATA = 0x00AF9B000000FFFF, 0x00CF93000000FFFF
_RAM = 4 << 20


class NoBugs:
    """A table without BUG and WARN sites, or with those that a test puts in."""

    def __init__(self):
        self.sites = {}

    def find(self, address):
        return self.sites.get(address)

    def skips(self, site):
        return False


class SmallGuest:
    """Functions in one 2 MiB page of kernel text, an IDT with handlers for #BP and #PF, a stack; 4 MiB of RAM."""

    def __init__(self, folder, functions, handlers=(), index=0):
        ram = bytearray(_RAM)
        tables = Tables(ram, 0x1000, 0x2000)
        tables.map(KERNEL, 0x200000, huge=True)
        tables.map(READ_ONLY, 0x100000, 1)
        tables.map(ABSENT, 16 << 20)
        self.addresses, at = {}, KERNEL + 0x1000
        for name, text in functions.items():
            image = assemble(text, at, self.addresses)
            self.addresses[name] = at
            ram[0x200000 + at - KERNEL : 0x200000 + at - KERNEL + len(image.code)] = image.code
            at = at + len(image.code) + 31 & ~15
        for vector, name in dict(handlers).items():
            address = self.addresses[name]
            gate = struct.pack("<HHBBHII", address & 0xFFFF, 0x10, 0, 0x8E, address >> 16 & 0xFFFF, address >> 32, 0)
            struct.pack_into("<16s", ram, 0x200000 + IDT - KERNEL + 16 * vector, gate)
        struct.pack_into("<4Q", ram, 0x200000 + GDT - KERNEL, 0, 0, _CODE64, _DATA)
        path = folder / "guest.core"
        path.write_bytes(elf_core([(0, bytes(ram))]))
        with path.open("rb") as file:
            core = ElfCore(str(path), file.fileno())
        self.memory = PageTables(core.memory, 0x1000, 4)
        names = [*self.addresses, "_end"]
        addresses = [*self.addresses.values(), KERNEL + 0x200000]
        self.names = CodeNames(Kallsyms(names, "T" * len(names), addresses, None))
        self.bugs = NoBugs()
        self.machine = KernelMachine(self.memory, self.names, self.bugs, CpuSetup(index, GS, GDT, 31, IDT, TSS))

    def call(self, name, *arguments, **how):
        return self.machine.call(self.addresses[name], arguments, STACK_TOP, **how)

    def reset(self):
        self.memory.memory.reset()
        self.machine.memory_changed()
        self.machine.reset_cpu()
        self.machine.unusable = None
