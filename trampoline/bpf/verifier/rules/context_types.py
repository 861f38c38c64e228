"""Context structs: their names in programs' prototypes, and the kernel's own structs (``bpf_ctx_convert``)."""

from types import MappingProxyType

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.uapi import ProgType

_SKB = (("__sk_buff", "sk_buff"), "sk_buff")
_RAW = (("bpf_raw_tracepoint_args",), "")
_NAMES: MappingProxyType[int, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        ProgType.SOCKET_FILTER: _SKB,
        ProgType.SCHED_CLS: _SKB,
        ProgType.SCHED_ACT: _SKB,
        ProgType.XDP: (("xdp_md", "xdp_buff"), "xdp_buff"),
        ProgType.KPROBE: (("bpf_user_pt_regs_t", "pt_regs"), "pt_regs"),
        ProgType.PERF_EVENT: (("bpf_perf_event_data",), "bpf_perf_event_data_kern"),
        ProgType.RAW_TRACEPOINT: _RAW,
        ProgType.RAW_TRACEPOINT_WRITABLE: _RAW,
    }
)


def is_context(btf: Btf, type_id: int, prog_type: int) -> bool:
    """True if a pointer to this type is a context pointer of such a program (``btf_is_prog_ctx_type``)."""
    names, _ = _NAMES.get(prog_type, ((), ""))
    kind = btf.type(type_id)
    while kind.kind in (BtfKind.CONST, BtfKind.VOLATILE, BtfKind.RESTRICT, BtfKind.TYPE_TAG, BtfKind.TYPEDEF):
        if prog_type == ProgType.KPROBE and kind.kind is BtfKind.TYPEDEF and kind.name == names[0]:
            return True
        kind = btf.type(kind.type_id)
    return kind.kind is BtfKind.STRUCT and kind.name in names


def kernel_struct(btf: Btf, prog_type: int) -> int:
    """Type id of the kernel's own struct for the context of a program type, in its BTF; 0 if unknown."""
    _, struct = _NAMES.get(prog_type, ((), ""))
    return btf.struct_named(struct) if struct else 0
