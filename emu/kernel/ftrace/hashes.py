"""``struct ftrace_hash`` in guest memory: sites, each with a direct address or 0, for guest code to look up."""

import struct
from array import array
from collections.abc import Mapping

from emu.kernel.mm.slab import Slab
from emu.kernel.routines.ftrace import GOLDEN_RATIO_64
from emu.kernel.structs import ftrace_func_entry, ftrace_hash
from emu.machine.machine import Machine

FTRACE_HASH_MAX_BITS = 12

_MASK = (1 << 64) - 1
_WORDS = ftrace_func_entry.size // 8
_IP, _DIRECT = ftrace_func_entry.offset("ip") // 8, ftrace_func_entry.offset("direct") // 8


def size_bits(count: int) -> int:
    """Bits of a hash for ``count`` entries (``dup_hash``: fls of half, at most FTRACE_HASH_MAX_BITS)."""
    return min((count // 2).bit_length(), FTRACE_HASH_MAX_BITS)


def hash_bytes(count: int) -> int:
    """Size in bytes of a hash of ``count`` entries in guest memory."""
    return ftrace_hash.size + (8 << size_bits(count)) + ftrace_func_entry.size * count


def write_hash(machine: Machine, slab: Slab, entries: Mapping[int, int], name: str) -> int:
    """Guest address of a new hash of ``entries``, one allocation with its buckets and entries. -ENOMEM."""
    bits = size_bits(len(entries))
    address = slab.alloc(hash_bytes(len(entries)), name)
    buckets = [0] * (1 << bits)
    at = address + ftrace_hash.size + 8 * len(buckets)
    shift = 64 - bits
    following = []
    for ip in entries:
        # hash_long(); without bits it is 0.
        key = (ip * GOLDEN_RATIO_64 & _MASK) >> shift
        following.append(buckets[key])
        buckets[key] = at
        at += ftrace_func_entry.size
    words = array("Q", bytes(ftrace_func_entry.size * len(entries)))
    words[::_WORDS], words[_IP::_WORDS] = array("Q", following), array("Q", entries)
    words[_DIRECT::_WORDS] = array("Q", entries.values())
    head = bytearray(ftrace_hash.size)
    struct.pack_into("<QQQ", head, ftrace_hash.offset("size_bits"), bits, address + ftrace_hash.size, len(entries))
    machine.write(address, bytes(head) + array("Q", buckets).tobytes() + words.tobytes())
    return address


def entries_of(address: int, entries: Mapping[int, int]) -> dict[int, int]:
    """Guest address of each site's entry in the hash that ``write_hash`` wrote for ``entries``."""
    size = ftrace_func_entry.size
    first = address + ftrace_hash.size + (8 << size_bits(len(entries)))
    return dict(zip(entries, range(first, first + size * len(entries), size), strict=True))
