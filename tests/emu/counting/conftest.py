"""A bare engine with real page tables and NX on data, and the runs that a machine would make on it."""

import itertools
import struct
from dataclasses import dataclass

import pytest
from keystone import KS_ARCH_X86, KS_MODE_64, Ks
from unicorn import Uc, UcError, x86_const
from unicorn.unicorn_const import UC_ARCH_X86, UC_HOOK_INTR, UC_MODE_64

from emu.counting import counter_for

PAGES = 64
TEXT_PHYSICAL = 0x100000
DATA_PHYSICAL = 0x200000


@dataclass
class Exit:
    rip: int
    faulted: bool


class Engine:
    text = 0xFFFFFFFF81000000
    data = 0xFFFF888000000000
    stack = data + 0x20000
    data_end = data + PAGES * 0x1000

    def __init__(self, source="", redirect=None):
        """Code assembled at the start of the text. `redirect` maps the RIP after an int3 to where the hook sends it."""
        self.uc = uc = Uc(UC_ARCH_X86, UC_MODE_64)
        uc.ctl_set_tcg_buffer_size(4 << 20)
        uc.mem_map(0, 4 << 20)
        self._tables = itertools.count(0x2000, 0x1000)
        for page in range(PAGES):
            self._map(self.text + page * 0x1000, TEXT_PHYSICAL + page * 0x1000, 1)
            self._map(self.data + page * 0x1000, DATA_PHYSICAL + page * 0x1000, 3 | 1 << 63)
        uc.reg_write(x86_const.UC_X86_REG_CR4, uc.reg_read(x86_const.UC_X86_REG_CR4) | 1 << 5)
        uc.reg_write(x86_const.UC_X86_REG_CR3, 0x1000)
        uc.msr_write(0xC0000080, uc.msr_read(0xC0000080) | 0xD00)
        uc.reg_write(x86_const.UC_X86_REG_CR0, 0x80010033)
        self.redirect = redirect or {}
        self.fault = None
        self.on_fault = uc.emu_stop
        uc.hook_add(UC_HOOK_INTR, self._interrupt)
        self.end = self.text + self.write(self.text, source)
        self.registers(rsp=self.stack, rdi=self.data)

    def _map(self, virtual, physical, flags):
        table = 0x1000
        for shift in (39, 30, 21):
            entry = table + (virtual >> shift & 511) * 8
            (value,) = struct.unpack("<Q", self.uc.mem_read(entry, 8))
            if not value:
                value = next(self._tables) | 3
                self.uc.mem_write(entry, struct.pack("<Q", value))
            table = value & ~0xFFF
        self.uc.mem_write(table + (virtual >> 12 & 511) * 8, struct.pack("<Q", physical | flags))

    def _interrupt(self, uc, number, _):
        rip = self.rip
        if number != 3:
            self.fault = number
            self.on_fault()
        elif rip in self.redirect:
            target, pushed = self.redirect[rip]
            if pushed is not None:
                self.push(pushed)
            self.registers(rip=target)

    def push(self, value):
        rsp = self.uc.reg_read(x86_const.UC_X86_REG_RSP) - 8
        self.uc.mem_write(rsp - self.data + DATA_PHYSICAL, struct.pack("<Q", value))
        self.registers(rsp=rsp)

    def write(self, address, code):
        """Puts code (bytes or text) there, without telling anybody; gives its size."""
        if isinstance(code, str):
            code = bytes(Ks(KS_ARCH_X86, KS_MODE_64).asm(code, address)[0] or b"") if code else b""
        self.uc.mem_write(address - self.text + TEXT_PHYSICAL, code)
        return len(code)

    def patch(self, address, code, *counters):
        size = self.write(address, code)
        self.uc.ctl_remove_cache(address, address + size)
        for counter in counters:
            counter.invalidate(address, address + size)

    def read_code(self, address, size):
        return bytes(self.uc.mem_read(address - self.text + TEXT_PHYSICAL, size))

    def registers(self, **values):
        for name, value in values.items():
            self.uc.reg_write(getattr(x86_const, f"UC_X86_REG_{name.upper()}"), value)

    @property
    def rip(self):
        return self.uc.reg_read(x86_const.UC_X86_REG_RIP)

    def counter(self, method="native", **options):
        return counter_for(self.uc, self.read_code, method, **options)

    def run(self, *counters, start=None, until=None, count=0):
        """One emu_start, from the start of the text up to the end of the code unless said otherwise."""
        self.fault = None
        for counter in counters:
            counter.begin()
        failed = False
        try:
            self.uc.emu_start(self.text if start is None else start, self.end if until is None else until, count=count)
        except UcError:
            failed = True
        way_out = Exit(self.rip, failed or self.fault is not None)
        for counter in reversed(counters):
            counter.end(way_out.rip, way_out.faulted)
        return way_out

    def offsets(self, counter):
        """Counts by offset in the text."""
        return {address - self.text: count for address, count in counter.counts().items()}


@pytest.fixture(scope="session")
def engine():
    """Makes engines; see Engine."""
    return Engine


@pytest.fixture(params=["native", "portable", "each"])
def method(request):
    return request.param
