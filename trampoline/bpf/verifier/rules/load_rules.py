"""Checks of BPF_PROG_LOAD before verification: types, attach types, flags, capabilities; a release's rules for them."""

from dataclasses import dataclass

from trampoline.bpf.uapi import MapType, ProgType

MAX_INSNS = 1_000_000
"""``BPF_COMPLEXITY_LIMIT_INSNS``: maximum number of instructions (slots) with CAP_BPF."""
MAX_INSNS_UNPRIVILEGED = 4096
"""``BPF_MAXINSNS``."""
MAX_TYPE_ID = 0x000FFFFF
"""``BTF_MAX_TYPE``: the largest valid ``attach_btf_id``."""

UNPRIVILEGED_TYPES = frozenset({ProgType.SOCKET_FILTER, ProgType.CGROUP_SKB})
"""Program types allowed without CAP_BPF if kernel.unprivileged_bpf_disabled is 0."""

NET_ADMIN_TYPES = frozenset(
    {
        ProgType.SCHED_CLS,
        ProgType.SCHED_ACT,
        ProgType.XDP,
        ProgType.LWT_IN,
        ProgType.LWT_OUT,
        ProgType.LWT_XMIT,
        ProgType.LWT_SEG6LOCAL,
        ProgType.SK_SKB,
        ProgType.SK_MSG,
        ProgType.FLOW_DISSECTOR,
        ProgType.CGROUP_DEVICE,
        ProgType.CGROUP_SOCK,
        ProgType.CGROUP_SOCK_ADDR,
        ProgType.CGROUP_SOCKOPT,
        ProgType.CGROUP_SYSCTL,
        ProgType.SOCK_OPS,
        ProgType.EXT,
        ProgType.NETFILTER,
    }
)
"""``is_net_admin_prog_type``."""

PERFMON_TYPES = frozenset(
    {
        ProgType.KPROBE,
        ProgType.TRACEPOINT,
        ProgType.PERF_EVENT,
        ProgType.RAW_TRACEPOINT,
        ProgType.RAW_TRACEPOINT_WRITABLE,
        ProgType.TRACING,
        ProgType.LSM,
        ProgType.STRUCT_OPS,
        ProgType.EXT,
    }
)
"""``is_perfmon_prog_type``."""

ATTACH_TYPES = {
    ProgType.CGROUP_SOCK: (2, 12, 13, 34),
    ProgType.CGROUP_SOCK_ADDR: (8, 9, 10, 11, 14, 15, 19, 20, 29, 30, 31, 32, 47, 48, 49, 50, 51),
    ProgType.CGROUP_SKB: (0, 1),
    ProgType.CGROUP_SOCKOPT: (21, 22),
    ProgType.SK_LOOKUP: (36,),
    ProgType.SK_REUSEPORT: (39, 40),
    ProgType.NETFILTER: (45,),
    ProgType.SYSCALL: (0,),
    ProgType.EXT: (0,),
}
"""``bpf_prog_load_check_attach``: allowed expected attach types by program type; other types are not checked here.

CGROUP_SOCK's 0 is set to 2 first (``bpf_prog_load_fixup_attach_type``).
"""
FIXED_UP = {ProgType.CGROUP_SOCK: 2, ProgType.SK_REUSEPORT: 39}
"""Expected attach type that replaces 0."""

@dataclass(frozen=True, slots=True)
class LoadRules:
    """One release's BPF_PROG_LOAD."""

    flags: int
    """Known flags; others are EINVAL."""
    types: int
    """Number of program types (``ARRAY_SIZE(bpf_prog_types)``)."""
    map_types: int
    """Number of map types: a map of a later type was not created, so that its descriptor is invalid."""
    sleepable_maps: frozenset[MapType]
    """Maps that a sleepable program may use."""
    sleepable_maps_fault: str
    """The log's line for other maps."""
