"""Compatibility of maps with helpers and programs, and data of a call's map for the rewriting."""

from errno import EACCES
from types import MappingProxyType

from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType as M
from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.access.value_regions import special_fields
from trampoline.bpf.verifier.state.call_meta import CallMeta
from trampoline.bpf.verifier.state.env import Env

_RDONLY_PROG, _WRONLY_PROG = 1 << 7, 1 << 8
_EVENTS = ("perf_event_read", "perf_event_output", "skb_output", "perf_event_read_value", "xdp_output")
_RINGBUF = (
    "ringbuf_output",
    "ringbuf_reserve",
    "ringbuf_query",
    "ringbuf_reserve_dynptr",
    "ringbuf_submit_dynptr",
    "ringbuf_discard_dynptr",
)
_LOOKUP = ("map_lookup_elem",)
_QUEUE = ("map_peek_elem", "map_pop_elem", "map_push_elem")
_SOCKS = (
    "sk_redirect_map",
    "sock_map_update",
    "map_delete_elem",
    "msg_redirect_map",
    "sk_select_reuseport",
    "map_lookup_elem",
    "map_update_elem",
)

HELPERS_OF_MAP: MappingProxyType[int, tuple[str, ...]] = MappingProxyType(
    {
        M.PROG_ARRAY: ("tail_call",),
        M.PERF_EVENT_ARRAY: _EVENTS,
        M.RINGBUF: _RINGBUF,
        M.USER_RINGBUF: ("user_ringbuf_drain",),
        M.STACK_TRACE: ("get_stackid",),
        M.CGROUP_ARRAY: ("skb_under_cgroup", "current_task_under_cgroup"),
        M.CGROUP_STORAGE: ("get_local_storage",),
        M.PERCPU_CGROUP_STORAGE: ("get_local_storage",),
        M.DEVMAP: ("redirect_map", "map_lookup_elem"),
        M.DEVMAP_HASH: ("redirect_map", "map_lookup_elem"),
        M.XSKMAP: ("redirect_map", "map_lookup_elem"),
        M.CPUMAP: ("redirect_map",),
        M.ARRAY_OF_MAPS: _LOOKUP,
        M.HASH_OF_MAPS: _LOOKUP,
        M.SOCKMAP: _SOCKS,
        M.SOCKHASH: (*_SOCKS, "sk_redirect_hash", "sock_hash_update", "msg_redirect_hash"),
        M.REUSEPORT_SOCKARRAY: ("sk_select_reuseport",),
        M.QUEUE: _QUEUE,
        M.STACK: _QUEUE,
        M.SK_STORAGE: ("sk_storage_get", "sk_storage_delete", "kptr_xchg"),
        M.INODE_STORAGE: ("inode_storage_get", "inode_storage_delete", "kptr_xchg"),
        M.TASK_STORAGE: ("task_storage_get", "task_storage_delete", "kptr_xchg"),
        M.CGRP_STORAGE: ("cgrp_storage_get", "cgrp_storage_delete", "kptr_xchg"),
        M.BLOOM_FILTER: ("map_peek_elem", "map_push_elem"),
        M.INSN_ARRAY: (),
    }
)
"""The only helpers that accept such a map; types not listed are accepted by all."""
_PERCPU = (M.PERCPU_ARRAY, M.PERCPU_HASH, M.LRU_PERCPU_HASH)
MAPS_OF_HELPER: MappingProxyType[str, tuple[M, ...]] = MappingProxyType(
    {
        "tail_call": (M.PROG_ARRAY,),
        **dict.fromkeys(_EVENTS, (M.PERF_EVENT_ARRAY,)),
        **dict.fromkeys(_RINGBUF[:4], (M.RINGBUF,)),
        "user_ringbuf_drain": (M.USER_RINGBUF,),
        "get_stackid": (M.STACK_TRACE,),
        "current_task_under_cgroup": (M.CGROUP_ARRAY,),
        "skb_under_cgroup": (M.CGROUP_ARRAY,),
        "redirect_map": (M.DEVMAP, M.DEVMAP_HASH, M.CPUMAP, M.XSKMAP),
        "get_local_storage": (M.CGROUP_STORAGE, M.PERCPU_CGROUP_STORAGE),
        "map_pop_elem": (M.QUEUE, M.STACK),
        "map_peek_elem": (M.QUEUE, M.STACK, M.BLOOM_FILTER),
        "map_push_elem": (M.QUEUE, M.STACK, M.BLOOM_FILTER),
        "map_lookup_percpu_elem": _PERCPU,
        **dict.fromkeys(("sk_storage_get", "sk_storage_delete"), (M.SK_STORAGE,)),
        **dict.fromkeys(("inode_storage_get", "inode_storage_delete"), (M.INODE_STORAGE,)),
        **dict.fromkeys(("task_storage_get", "task_storage_delete"), (M.TASK_STORAGE,)),
        **dict.fromkeys(("cgrp_storage_get", "cgrp_storage_delete"), (M.CGRP_STORAGE,)),
    }
)
"""The only map types that a helper accepts."""

_RECORDED = (
    "tail_call",
    "map_lookup_elem",
    "map_update_elem",
    "map_delete_elem",
    "map_push_elem",
    "map_pop_elem",
    "map_peek_elem",
    "for_each_map_elem",
    "redirect_map",
    "map_lookup_percpu_elem",
)
_WRITERS = ("map_delete_elem", "map_update_elem", "map_push_elem", "map_pop_elem")

_TRACING = frozenset(
    {
        ProgType.KPROBE,
        ProgType.TRACEPOINT,
        ProgType.PERF_EVENT,
        ProgType.RAW_TRACEPOINT,
        ProgType.RAW_TRACEPOINT_WRITABLE,
    }
)
_NOT_IN_TRACING = ("bpf_spin_lock", "bpf_timer", "bpf_wq", "bpf_list_head", "bpf_rb_root")


def check_map_prog_compatibility(env: Env, spec: MapSpec) -> None:
    """``check_map_prog_compatibility``: refuse maps that a program of this type may not use."""
    rules, kind = env.kernel.rules.load, env.program.prog_type
    fields = {name for _, _, name in special_fields(env.program.btf, spec)}
    if kind in _TRACING:
        for name in _NOT_IN_TRACING:
            if name in fields:
                env.invalid(f"tracing progs cannot use {name} yet")
    if "bpf_spin_lock" in fields and kind == ProgType.SOCKET_FILTER:
        env.invalid("socket filter progs cannot use bpf_spin_lock yet")
    if spec.type == M.STRUCT_OPS:
        env.invalid("bpf_struct_ops map cannot be used in prog")
    if env.program.sleepable and spec.type not in rules.sleepable_maps:
        env.invalid(rules.sleepable_maps_fault)


def check_map_func_compatibility(env: Env, meta: CallMeta) -> None:
    """``check_map_func_compatibility``: the map is allowed for the helper, and the helper for the map."""
    if meta.map is None:
        return
    helpers = HELPERS_OF_MAP.get(meta.map.type)
    maps = MAPS_OF_HELPER.get(meta.name)
    if (helpers is not None and meta.name not in helpers) or (maps is not None and meta.map.type not in maps):
        env.invalid(f"cannot pass map_type {int(meta.map.type)} into func {meta.shown}")


def record_map(env: Env, meta: CallMeta) -> None:
    """``record_func_map`` and ``record_func_key``: record the map and the constant key of a call that the rewriting may
    replace. Refuses calls that would change a map which is read-only to programs.
    """
    if meta.name not in _RECORDED:
        return
    if meta.map is None:
        env.invalid("kernel subsystem misconfigured verifier")
    if meta.map.flags & _RDONLY_PROG and meta.name in _WRITERS:
        env.refuse(EACCES, "write into map forbidden")
    fact = env.fact
    if not fact.calls_seen:
        fact.map = meta.map
    elif fact.map is not meta.map:
        fact.map = None
    key = None
    if meta.name == "tail_call":
        if meta.map.type != M.PROG_ARRAY:
            env.invalid(env.kernel.rules.calls.map_owner_fault)
        index = env.reg(3)
        if index.is_scalar and index.var.is_const and index.var.value < meta.map.max_entries:
            key = index.var.value
    fact.map_key = key if not fact.calls_seen or fact.map_key == key else None
    fact.calls_seen = True
