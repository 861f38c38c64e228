"""BPF maps in guest memory, with a dictionary's face for Python."""

from trampoline.maps.bpf_map import BpfMap
from trampoline.maps.errors import MapValueError, UnsupportedMap
from trampoline.maps.flags import MapFlag, UpdateFlag
from trampoline.maps.format import Record, format_of
from trampoline.maps.layout import MAP_LAYOUTS, MapLayout, map_layout
from trampoline.maps.prog_array import ProgArray
from trampoline.maps.ringbuf import RingBuffer
from trampoline.maps.table import KINDS, Maps

__all__ = [
    "KINDS",
    "MAP_LAYOUTS",
    "BpfMap",
    "MapFlag",
    "MapLayout",
    "MapValueError",
    "Maps",
    "ProgArray",
    "Record",
    "RingBuffer",
    "UnsupportedMap",
    "UpdateFlag",
    "format_of",
    "map_layout",
]
