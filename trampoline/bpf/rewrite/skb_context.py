"""Fields of ``struct __sk_buff`` as loads from the kernel's ``struct sk_buff`` (``bpf_convert_ctx_access``)."""

from dataclasses import dataclass, replace

from trampoline.bpf.isa.insn import Alu, Insn, Size
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.errors import RewriteError

_U32 = 4
_CB = range(48, 68)


@dataclass(frozen=True, slots=True)
class SkbLayout:
    """Offsets in bytes in the kernel's ``struct sk_buff`` (``struct net_device`` for ``dev_ifindex``)."""

    len: int
    pkt_type: int
    mark: int
    queue_mapping: int
    protocol: int
    vlan_all: int
    vlan_tci: int
    vlan_proto: int
    priority: int
    skb_iif: int
    dev: int
    dev_ifindex: int
    tc_index: int
    cb: int
    hash: int
    napi_id: int
    vlan_present_bit: int = 0
    """Offset of the byte with vlan_present as bit 0, in kernels with a separate bit; 0: vlan_present is vlan_all != 0.
    """


def skb_access(insn: Insn, skb: SkbLayout) -> list[Insn]:
    """Replacement of a load of a field into a register. Raises RewriteError for fields that are not modelled."""
    dst, base, off = insn.dst, insn.src, insn.off
    plain = {
        0: (skb.len, Size.W),
        8: (skb.mark, Size.W),
        12: (skb.queue_mapping, Size.H),
        16: (skb.protocol, Size.H),
        24: (skb.vlan_tci, Size.H),
        28: (skb.vlan_proto, Size.H),
        32: (skb.priority, Size.W),
        36: (skb.skb_iif, Size.W),
        44: (skb.tc_index, Size.H),
        68: (skb.hash, Size.W),
    }
    if insn.size == Size.W and insn.cls == 1:
        if off in plain:
            where, size = plain[off]
            return [emit.load(dst, base, where, size)]
        if off == 4:
            return [emit.load(dst, base, skb.pkt_type, Size.B), emit.alu_imm(Alu.AND, dst, 7, wide=False)]
        if off == 20:
            return _vlan_present(dst, base, skb)
        if off == 40:
            return [
                emit.load(dst, base, skb.dev),
                emit.jump_if(emit.JEQ, dst, 0, 1),
                emit.load(dst, dst, skb.dev_ifindex, Size.W),
            ]
    if off in _CB:
        return [replace(insn, off=off - _CB.start + skb.cb)]
    raise RewriteError(f"an access to offset {off} of struct __sk_buff is not modelled")


def _vlan_present(dst: int, base: int, skb: SkbLayout) -> list[Insn]:
    if skb.vlan_present_bit:
        return [emit.load(dst, base, skb.vlan_present_bit, Size.B), emit.alu_imm(Alu.AND, dst, 1, wide=False)]
    return [
        emit.load(dst, base, skb.vlan_all, Size.W),
        emit.jump_if(emit.JEQ, dst, 0, 1),
        emit.mov32_imm(dst, 1),
    ]
