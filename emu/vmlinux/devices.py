"""Devices that a booted kernel may touch: HPET, local APIC and I/O APIC as memory, no port answers."""

from typing import Final

from unicorn.unicorn_const import UC_HOOK_INSN
from unicorn.unicorn_py3.arch.intel import UcIntel
from unicorn.unicorn_py3.unicorn import Uc
from unicorn.x86_const import UC_X86_INS_IN, UC_X86_INS_OUT

from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.physical_memory import PhysicalMemory

_PAGES: Final = (("hpet", 0xFED00000), ("lapic", 0xFEE00000), ("ioapic", 0xFEC00000))
_HPET_COUNTER: Final = 0xF0
_HPET_STEP: Final = 100


class Devices:
    """Stubs in one engine. Registers read as 0, the HPET's counter (a clock source without invariant TSC) rises with
    each reading, ports read as all ones, writes do nothing. ``accesses`` counts accesses by device.
    """

    def __init__(self, uc: UcIntel, memory: PhysicalMemory) -> None:
        self.accesses: dict[str, int] = {}
        self._counter = 0
        for name, address in _PAGES:
            if not memory.has(address):
                uc.mmio_map(address, PAGE_SIZE, self._read, name, self._write, name)
        uc.hook_add(UC_HOOK_INSN, self._port_read, None, 1, 0, UC_X86_INS_IN)
        uc.hook_add(UC_HOOK_INSN, self._port_write, None, 1, 0, UC_X86_INS_OUT)

    def _note(self, name: str) -> None:
        self.accesses[name] = self.accesses.get(name, 0) + 1

    def _read(self, _uc: Uc, offset: int, _size: int, name: str) -> int:
        self._note(name)
        if name == "hpet" and offset == _HPET_COUNTER:
            self._counter += _HPET_STEP
            return self._counter
        return 0

    def _write(self, _uc: Uc, _offset: int, _size: int, _value: int, name: str) -> None:
        self._note(name)

    def _port_read(self, _uc: Uc, _port: int, size: int, _data: object) -> int:
        self._note("port")
        return (1 << 8 * size) - 1

    def _port_write(self, _uc: Uc, _port: int, _size: int, _value: int, _data: object) -> None:
        self._note("port")
