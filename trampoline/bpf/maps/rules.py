"""Rules of a kernel release for maps: their layout in memory, as generated code reads it.

Offsets are those of the releases' BTF. A program's inlined look-ups contain ``bpf_array.value``, the size of
``htab_elem`` and the LRU reference bit; a tail call reads ``bpf_map.max_entries`` and ``bpf_array.ptrs``.
"""

from dataclasses import dataclass

from emu.kernel.structs import Struct, embedded, raw, s32, struct_symbols, u8, u32, u64

KEY_OFFSET = 0x30
"""Offset of ``htab_elem.key``: the key, padded to 8 bytes, followed by the value."""

htab_elem = Struct(
    "htab_elem",
    size=KEY_OFFSET,
    fields={
        "next": u64(0x00),  # next of its hash_node; odd: the end of the list
        "pprev": u64(0x08),
        "ptr_to_pptr": u64(0x10),
        "lru_type": u8(0x22),
        "lru_ref": u8(0x23),  # set by look-ups of programs
        "hash": u32(0x28),
    },
)

bucket = Struct("bucket", size=0x10, fields={"first": u64(0x00), "raw_lock": u32(0x08)})

bpf_ringbuf = Struct(
    "bpf_ringbuf",
    size=0x3000,  # followed by the data, mapped twice
    fields={
        "mask": u64(0x38),
        "nr_pages": s32(0x48),
        "overwrite_mode": u8(0x4C),
        "spinlock": u32(0x80),
        "busy": u32(0xC0),
        "consumer_pos": u64(0x1000),
        "producer_pos": u64(0x2000),
        "pending_pos": u64(0x2008),
        "overwrite_pos": u64(0x2010),
    },
)

bpf_ringbuf_hdr = Struct("bpf_ringbuf_hdr", size=8, fields={"len": u32(0), "pg_off": u32(4)})

OPERATIONS = (
    "map_lookup_elem", "map_update_elem", "map_delete_elem", "map_push_elem", "map_pop_elem", "map_peek_elem",
    "map_lookup_percpu_elem",
)  # fmt: skip
"""Members of ``bpf_map_ops`` that programs call, consecutive in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class MapRules:
    """One release's map structures."""

    bpf_map: Struct
    bpf_array: Struct
    bpf_htab: Struct
    bpf_ringbuf_map: Struct
    bpf_map_ops: Struct
    prog_bpf_func: int
    """``offsetof(struct bpf_prog, bpf_func)``, read by tail calls."""

    @property
    def structs(self) -> tuple[Struct, ...]:
        """Every structure of the release."""
        return (
            *(self.bpf_map, self.bpf_array, self.bpf_htab, self.bpf_ringbuf_map, self.bpf_map_ops),
            *(htab_elem, bucket, bpf_ringbuf, bpf_ringbuf_hdr),
        )

    def asm_symbols(self) -> dict[str, int]:
        """Symbols of all structures, for assembly text."""
        return struct_symbols(self.structs)


def bpf_map(size: int, ops: int, **more: int) -> Struct:
    """``struct bpf_map``; its first members are consecutive from offset ``ops`` on."""
    fields = {
        "ops": u64(ops),
        "map_type": u32(ops + 0x18),
        "key_size": u32(ops + 0x1C),
        "value_size": u32(ops + 0x20),
        "max_entries": u32(ops + 0x24),
        "map_extra": u64(ops + 0x28),
        "map_flags": u32(ops + 0x30),
        "id": u32(more["id"]),
        "btf_key_type_id": u32(more["btf_ids"]),
        "btf_value_type_id": u32(more["btf_ids"] + 4),
        "name": raw(more["name"], 16),
        "refcnt": u64(more["refcnt"]),
        "usercnt": u64(more["refcnt"] + 8),
        "bypass_spec_v1": u8(more["bypass"]),
        "frozen": u8(more["bypass"] + 1),
    }
    return Struct("bpf_map", size=size, fields=fields)


def map_rules(
    bpf_map: Struct,
    *,
    value: int,
    htab_size: int,
    buckets: int,
    freelist: int,
    count: int,
    n_buckets: int,
    ops_size: int,
    for_each: int,
    prog_bpf_func: int,
) -> MapRules:
    """The structures that contain ``bpf_map``, from the offsets of their own members in bytes."""
    array = {
        "map": embedded(0, bpf_map),
        "elem_size": u32(bpf_map.size),
        "index_mask": u32(bpf_map.size + 4),
        "aux": u64(bpf_map.size + 8),
        "value": raw(value, 0),
        "ptrs": raw(value, 0),
        "pptrs": raw(value, 0),
    }
    htab = {
        "map": embedded(0, bpf_map),
        "buckets": u64(buckets),
        "elems": u64(buckets + 8),
        "freelist": u64(freelist),
        "lru_hand": u64(freelist + 0x40),  # in place of the kernel's LRU lists: the element to check next
        "count": u32(count),
        "n_buckets": u32(n_buckets),
        "elem_size": u32(n_buckets + 4),
        "hashrnd": u32(n_buckets + 8),
    }
    ops = {name: u64(0x60 + 8 * position) for position, name in enumerate(OPERATIONS)}
    return MapRules(
        bpf_map,
        Struct("bpf_array", size=value, fields=array),
        Struct("bpf_htab", size=htab_size, fields=htab),
        Struct("bpf_ringbuf_map", size=bpf_map.size + 8, fields={"map": embedded(0, bpf_map), "rb": u64(bpf_map.size)}),
        Struct("bpf_map_ops", size=ops_size, fields={**ops, "map_for_each_callback": u64(for_each)}),
        prog_bpf_func,
    )
