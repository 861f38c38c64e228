"""Flags of maps and updates (include/uapi/linux/bpf.h)."""

from enum import IntFlag


class UpdateFlag(IntFlag):
    """Conditions of an update on the key: any, new, or existing."""

    ANY = 0
    NOEXIST = 1
    EXIST = 2


BPF_NOEXIST, BPF_EXIST, BPF_F_LOCK = 1, 2, 4


class MapFlag(IntFlag):
    """``BPF_F_...`` flags of BPF_MAP_CREATE."""

    NO_PREALLOC = 1 << 0
    NO_COMMON_LRU = 1 << 1
    NUMA_NODE = 1 << 2
    RDONLY = 1 << 3
    WRONLY = 1 << 4
    ZERO_SEED = 1 << 6
    RDONLY_PROG = 1 << 7
    WRONLY_PROG = 1 << 8
    MMAPABLE = 1 << 10
    PRESERVE_ELEMS = 1 << 11
    INNER_MAP = 1 << 12
    RB_OVERWRITE = 1 << 19


# Plain ints: the complement of an IntFlag contains only defined flags.
ACCESS_MASK = int(MapFlag.RDONLY | MapFlag.WRONLY | MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG)
ARRAY_FLAGS = ACCESS_MASK | int(MapFlag.NUMA_NODE | MapFlag.MMAPABLE | MapFlag.PRESERVE_ELEMS | MapFlag.INNER_MAP)
HASH_FLAGS = ACCESS_MASK | int(
    MapFlag.NO_PREALLOC | MapFlag.NO_COMMON_LRU | MapFlag.NUMA_NODE | MapFlag.ZERO_SEED
)
PCPU_MIN_UNIT_SIZE = 32 << 10
"""Maximum size of a per-CPU value in bytes (include/linux/percpu.h)."""
KMALLOC_MAX_SIZE = 4 << 20
