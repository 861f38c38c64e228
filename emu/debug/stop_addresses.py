"""Code addresses at which the engine ends a run."""

import ctypes
import mmap
from collections.abc import Iterable

from emu.machine.address_map import AddressMap
from emu.machine.machine import Machine

_SIZE = 128 << 20
"""Bytes of kernel text, and of modules, that can be marked, with a byte of host memory each, committed on write."""


class StopAddresses:
    """A byte for each address of the kernel's text, of modules with images, and of host calls' stubs."""

    def __init__(self, machine: Machine) -> None:
        layout: AddressMap = machine.layout
        ranges = ((layout.text, _SIZE), (layout.modules, _SIZE), (layout.host_calls, machine.host_calls.size))
        self._machine = machine
        self._memories = [(start, size, mmap.mmap(-1, size)) for start, size in ranges]
        self._views = [ctypes.c_char.from_buffer(memory) for _, _, memory in self._memories]
        self.addresses: frozenset[int] = frozenset()
        """The marked addresses."""
        for vcpu in machine.vcpus:
            vcpu.engine.stop_at(
                [
                    (start, size, ctypes.addressof(view))
                    for (start, size, _), view in zip(self._memories, self._views, strict=True)
                ]
            )

    def covers(self, address: int) -> bool:
        """True if an address can be marked."""
        return any(0 <= address - start < size for start, size, _ in self._memories)

    def set(self, addresses: Iterable[int]) -> None:
        """Mark only these, without addresses that can't be marked and the return address of calls from outside."""
        wanted = frozenset(addresses) - {self._machine.host_calls.return_address}
        for address in self.addresses - wanted:
            self._write(address, 0)
        for address in wanted - self.addresses:
            self._write(address, 1)
        self.addresses = wanted

    def lift(self, address: int) -> None:
        """Unmark an address temporarily, so that a run can begin there."""
        self._write(address, 0)

    def put_back(self, address: int) -> None:
        """Undo ``lift``."""
        self._write(address, 1)

    def close(self) -> None:
        """Remove the marks from the engines."""
        for vcpu in self._machine.vcpus:
            vcpu.engine.stop_at(())

    def _write(self, address: int, value: int) -> None:
        for start, size, memory in self._memories:
            if 0 <= address - start < size:
                memory[address - start] = value
