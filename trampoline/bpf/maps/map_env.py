"""The parts of a kernel that maps depend on."""

from typing import TYPE_CHECKING, Protocol

from emu.kernel.kernel import Kernel
from trampoline.bpf.maps.map_memory import MapMemory
from trampoline.bpf.maps.rules import MapRules
from trampoline.bpf.uapi import MapType

if TYPE_CHECKING:
    from trampoline.bpf.maps.map_table import Maps
    from trampoline.bpf.prog import BpfPrograms


class MapSite(Protocol):
    """A kernel with map memory, and the map operations in its text."""

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        ...

    @property
    def layout(self) -> MapRules:
        """Map structures of its release."""
        ...

    @property
    def memory(self) -> MapMemory:
        """The allocator of maps."""
        ...

    @property
    def programs(self) -> "BpfPrograms":
        """Its programs."""
        ...

    @property
    def maps(self) -> "Maps":
        """The table of its maps."""
        ...

    def ops(self, kind: MapType) -> int:
        """Guest address of a type's ``struct bpf_map_ops``."""
        ...

    def function(self, name: str) -> int:
        """Guest address of a map operation."""
        ...
