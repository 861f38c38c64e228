"""Guest structures of the tracing-multi series (as posted in v2): per-function metadata, its programs, its hash table.

Offsets and sizes are those of the series. Two bytes in a hole of its structures are used by the look-up.
"""

from emu.kernel.structs import Struct, embedded, percpu_ref, struct_symbols, u8, u16, u32, u64

__all__ = ["STRUCTS", "asm_symbols", "kfunc_md", "kfunc_md_array", "kfunc_md_tramp_prog"]

kfunc_md = Struct(
    "kfunc_md",
    size=88,
    fields={
        # An hlist_node in the series. Here: two links, used in turn by successive tables (kfunc_md_array.link), so that
        # a resize can chain the same objects while CPUs still walk the old chains.
        "hash": u64(0).array(2),
        "rcu": u64(16).array(2),
        "func": u64(32),
        "bpf_progs": u64(40).array(3),
        "pcref": embedded(64, percpu_ref),
        "users": u16(80),
        "bpf_origin_call": u8(82),
        "bpf_prog_cnt": u8(83),
        "nr_args": u8(84),
    },
)

kfunc_md_tramp_prog = Struct(
    "kfunc_md_tramp_prog",
    size=40,
    fields={"next": u64(0), "prog": u64(8), "cookie": u64(16), "rcu": u64(24).array(2)},
)

kfunc_md_array = Struct(
    "kfunc_md_array",
    size=32,  # mds[] follows: the heads of 1 << hash_bits chains, 8 bytes each
    fields={
        "used": u32(0),
        "rcu": u64(8).array(2),
        "hash_bits": u32(24),
        "shift": u8(28),  # 64 - hash_bits
        "link": u8(29),  # offset of this table's link in a kfunc_md
        "mds": u64(32).array(0),
    },
)

STRUCTS = (kfunc_md, kfunc_md_tramp_prog, kfunc_md_array)


def asm_symbols() -> dict[str, int]:
    """Symbols of all these structures for assembly text."""
    return struct_symbols(STRUCTS)
