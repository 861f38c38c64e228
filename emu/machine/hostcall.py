"""Host calls: guest addresses at which guest code calls a Python function.

A stub is ``hlt``, which ends the run, and eight bytes further ``ret``, where the guest resumes: a host call counts as
two guest instructions, and the return stack stays balanced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.errors import MachineError
from emu.machine.address_map import PAGE_SIZE

if TYPE_CHECKING:
    from emu.machine.vcpu import Vcpu

SLOT = 16
RETURN_OFFSET = 8
PAGES = 16
_STUB = b"\xf4" + b"\xcc" * 7 + b"\xc3" + b"\xcc" * 7

HostFunction = Callable[["Vcpu"], int | None]


@dataclass(frozen=True, slots=True)
class HostCall:
    """The name and the Python function of a host call."""

    name: str
    function: HostFunction


class HostCalls:
    """The stubs of a machine, in pages that hold nothing else.

    The first one, at ``return_address``, is the return address of calls from outside.
    """

    def __init__(self, address: int) -> None:
        self.address, self.size = address, PAGES * PAGE_SIZE
        self.return_address = address
        self._calls: dict[int, HostCall] = {}
        self._free = list(range(address + self.size - SLOT, address, -SLOT))

    @property
    def code(self) -> bytes:
        """Content of the pages; it never changes."""
        return _STUB * (self.size // SLOT)

    def add(self, name: str, function: HostFunction) -> int:
        """Guest address of a new stub. MachineError if all stubs are in use."""
        if not self._free:
            raise MachineError(f"no stub left for the host call {name}")
        address = self._free.pop()
        self._calls[address] = HostCall(name, function)
        return address

    def remove(self, address: int) -> HostCall:
        """Remove a host call; calling its stub is a fault from now on. MachineError if there is none."""
        call = self._calls.pop(address, None)
        if call is None:
            raise MachineError(f"no host call at {address:#x}")
        self._free.append(address)
        return call

    def at(self, address: int) -> HostCall | None:
        """The host call whose stub begins at an address."""
        return self._calls.get(address)

    def is_stub(self, address: int) -> bool:
        """True if a stub, used or not, begins at an address."""
        return 0 <= address - self.address < self.size and (address - self.address) % SLOT == 0

    def name(self, address: int) -> str | None:
        """Name of the host call whose stub contains an address."""
        if not 0 <= address - self.address < self.size:
            return None
        found = self._calls.get(address - (address - self.address) % SLOT)
        return found.name if found else None
