"""The guest structures of BPF: programs, their statistics, run contexts, trampoline images.

Names are the kernel's, offsets those of a 6.12 kernel (Debian 6.12.107, from its BTF). Images refer to these objects
only by address, so one layout serves all flavours; fields of later kernels follow the 6.12 structure.
"""

from emu.kernel.structs import Struct, embedded, percpu_ref, raw, s32, struct_symbols, u8, u16, u32, u64

__all__ = [
    "SLEEPABLE",
    "STRUCTS",
    "asm_symbols",
    "bpf_prog",
    "bpf_prog_aux",
    "bpf_prog_stats",
    "bpf_tramp_image",
    "bpf_tramp_run_ctx",
]

SLEEPABLE = 0x40
"""``bpf_prog.sleepable`` in its byte (66c8473135c6 moved it there from bpf_prog_aux)."""

bpf_prog = Struct(
    "bpf_prog",
    size=0x50,
    fields={
        "pages": u16(0x00),
        "jited": u8(0x02),  # bit 0 of the bit-fields
        "sleepable": u8(0x03),  # bit 6 of the bit-fields: SLEEPABLE
        "type": u32(0x04),
        "expected_attach_type": u32(0x08),
        "len": u32(0x0C),  # eBPF instructions
        "jited_len": u32(0x10),  # bytes
        "tag": raw(0x14, 8),
        "stats": u64(0x20),  # per-CPU pointer to bpf_prog_stats
        "active": u64(0x28),  # per-CPU pointer to an int: current nesting depth of this program on that CPU
        "bpf_func": u64(0x30),
        "aux": u64(0x38),
        "orig_prog": u64(0x40),
        "bpf_func_7_2": u64(0x48),  # the same, at the offset that tail calls of 7.2 use
    },
)

bpf_prog_aux = Struct(
    "bpf_prog_aux",
    size=0x470,
    fields={
        "refcnt": u64(0x00),
        "max_ctx_offset": u32(0x10),
        "stack_depth": u32(0x1C),
        "id": u32(0x20),
        "func_cnt": u32(0x24),
        "attach_btf_id": u32(0x30),
        "dst_prog": u64(0x70),
        "dst_trampoline": u64(0x78),
        "attach_tracing_prog": u8(0x8C),
        "tail_call_reachable": u8(0x8E),
        "attach_func_proto": u64(0xC8),
        "attach_func_name": u64(0xD0),
        "func": u64(0xD8),
        "prog": u64(0x398),
        "name": raw(0x3C8, 16),
        "recursion_detected": u64(0x468),  # 6.14: called when the recursion guard refuses a run
    },
)

bpf_prog_stats = Struct(
    "bpf_prog_stats",
    size=0x20,
    fields={"cnt": u64(0x00), "nsecs": u64(0x08), "misses": u64(0x10)},
)

bpf_tramp_run_ctx = Struct(
    "bpf_tramp_run_ctx",
    size=0x10,  # its first member, struct bpf_run_ctx, is empty
    fields={"bpf_cookie": u64(0x00), "saved_run_ctx": u64(0x08)},
)

bpf_tramp_image = Struct(
    "bpf_tramp_image",
    size=0x2C0,
    fields={
        "image": u64(0x00),
        "size": s32(0x08),
        "ksym": raw(0x10, 600),
        "pcref": embedded(0x268, percpu_ref),
        "ip_after_call": u64(0x278),
        "ip_epilogue": u64(0x280),
        "rcu": u64(0x288).array(2),
        # 7.2 has these in place of ip_after_call and ip_epilogue.
        "call_orig": u8(0x2A8),
        "nr_skips": s32(0x2AC),
        "skips": u64(0x2B0),
    },
)

STRUCTS = (bpf_prog, bpf_prog_aux, bpf_prog_stats, bpf_tramp_run_ctx, bpf_tramp_image)


def asm_symbols() -> dict[str, int]:
    """Symbols of all structures in this module, for assembly text."""
    return struct_symbols(STRUCTS)
