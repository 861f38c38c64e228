"""Rules of a kernel release for the rewriting of verified programs."""

from dataclasses import dataclass

from trampoline.bpf.helpers.rules import NO_HELPERS, HelperRules
from trampoline.bpf.isa.rules import MayGoto
from trampoline.bpf.uapi import MapType


@dataclass(frozen=True, slots=True)
class RewriteRules:
    """One release's rewriting. ``KernelRelease`` sets the fields whose docstring says "from the release"."""

    ax: int
    """The register reserved for rewriting (BPF_REG_AX)."""
    inlines_percpu: bool
    """Look-ups in per-CPU maps are inlined (db69718b8efa, 6.10)."""
    cpu_number: str = ""
    """Per-CPU variable that bpf_get_smp_processor_id() reads inline; empty: it is called (1ae6921009e5, 6.10)."""
    current_task: str = ""
    """Per-CPU variable that bpf_get_current_task() and _btf() read inline; empty: they are called."""
    percpu_wide: bool = False
    """Per-CPU variables are kernel addresses, not small offsets (9d7de2aa8b41, 6.15)."""
    count_mask: int = 0
    """Bits of the word before the context that are the number of arguments; 0: all bits."""
    gfp_atomic: int = 0x820
    """GFP_ATOMIC, passed to storage helpers as a hidden argument."""
    inlines_kptr_xchg: bool = True
    """bpf_kptr_xchg() is one exchange (7c05e7f3e74e, 6.8)."""
    decides_constants: bool = False
    """Branches on constants are decided before verification."""
    array_value: int = 0x108
    """Offset of the elements in struct bpf_array. From the release."""
    may_goto: MayGoto = MayGoto.NONE
    """From the release."""
    helpers: HelperRules = NO_HELPERS
    """Helpers that programs call. From the release."""


HTAB_ELEM = 48
"""Size of struct htab_elem in bytes; key and value follow it."""
LRU_REF = 35
"""Offset of ``lru_node.ref`` in it."""

_HTAB = {"lookup": "__htab_map_lookup_elem", "for_each": "bpf_for_each_hash_elem"}
_ARRAY = {
    "lookup": "array_map_lookup_elem",
    "update": "array_map_update_elem",
    "delete": "array_map_delete_elem",
    "for_each": "bpf_for_each_array_elem",
}

MAP_OPERATIONS: dict[MapType, dict[str, str]] = {
    MapType.HASH: {**_HTAB, "update": "htab_map_update_elem", "delete": "htab_map_delete_elem"},
    MapType.LRU_HASH: {**_HTAB, "update": "htab_lru_map_update_elem", "delete": "htab_lru_map_delete_elem"},
    MapType.PERCPU_HASH: {
        "lookup": "htab_percpu_map_lookup_elem",
        "update": "htab_percpu_map_update_elem",
        "delete": "htab_map_delete_elem",
        "for_each": "bpf_for_each_hash_elem",
        "lookup_percpu": "htab_percpu_map_lookup_percpu_elem",
    },
    MapType.LRU_PERCPU_HASH: {
        "lookup": "htab_lru_percpu_map_lookup_elem",
        "update": "htab_lru_percpu_map_update_elem",
        "delete": "htab_lru_map_delete_elem",
        "for_each": "bpf_for_each_hash_elem",
        "lookup_percpu": "htab_lru_percpu_map_lookup_percpu_elem",
    },
    MapType.ARRAY: _ARRAY,
    MapType.PERCPU_ARRAY: {
        **_ARRAY,
        "lookup": "percpu_array_map_lookup_elem",
        "lookup_percpu": "percpu_array_map_lookup_percpu_elem",
    },
    MapType.LPM_TRIE: {"lookup": "trie_lookup_elem", "update": "trie_update_elem", "delete": "trie_delete_elem"},
    MapType.QUEUE: {
        "push": "queue_stack_map_push_elem",
        "pop": "queue_map_pop_elem",
        "peek": "queue_map_peek_elem",
    },
    MapType.STACK: {
        "push": "queue_stack_map_push_elem",
        "pop": "stack_map_pop_elem",
        "peek": "stack_map_peek_elem",
    },
    MapType.BLOOM_FILTER: {"push": "bloom_map_push_elem", "peek": "bloom_map_peek_elem"},
    MapType.HASH_OF_MAPS: {"lookup": "__htab_map_lookup_elem"},
    MapType.ARRAY_OF_MAPS: {"lookup": "array_of_map_lookup_elem"},
}
"""Kernel functions that replace map helpers if the map is known (``struct bpf_map_ops``)."""

MAP_HELPERS = {
    "map_lookup_elem": "lookup",
    "map_update_elem": "update",
    "map_delete_elem": "delete",
    "map_push_elem": "push",
    "map_pop_elem": "pop",
    "map_peek_elem": "peek",
    "for_each_map_elem": "for_each",
    "map_lookup_percpu_elem": "lookup_percpu",
}
