"""Where maps live: what a map needs of the kernel that it is made in."""

from typing import TYPE_CHECKING, Protocol

from emu.kernel.kernel import Kernel
from trampoline.bpf.maps.map_memory import MapMemory
from trampoline.bpf.maps.rules import MapRules
from trampoline.bpf.uapi import MapType

if TYPE_CHECKING:
    from trampoline.bpf.maps.map_table import Maps
    from trampoline.bpf.prog import BpfPrograms


class MapSite(Protocol):
    """A kernel with map memory and the maps' operations in its text."""

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        ...

    @property
    def layout(self) -> MapRules:
        """Its release's structures."""
        ...

    @property
    def memory(self) -> MapMemory:
        """Where maps are allocated."""
        ...

    @property
    def programs(self) -> "BpfPrograms":
        """Its programs."""
        ...

    @property
    def maps(self) -> "Maps":
        """All of its maps."""
        ...

    def ops(self, kind: MapType) -> int:
        """Guest address of a type's ``struct bpf_map_ops``."""
        ...

    def function(self, name: str) -> int:
        """Guest address of one of the operations."""
        ...
