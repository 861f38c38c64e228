"""Accesses to the context and to kernel memory (``convert_ctx_accesses``)."""

from dataclasses import replace

from trampoline.bpf.isa.insn import Cls, Insn, Mode
from trampoline.bpf.rewrite.errors import RewriteError
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList
from trampoline.bpf.rewrite.skb_context import SkbLayout, skb_access
from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.state.result import Pointee

_PLAIN_CONTEXTS = {
    ProgType.KPROBE,
    ProgType.TRACEPOINT,
    ProgType.RAW_TRACEPOINT,
    ProgType.RAW_TRACEPOINT_WRITABLE,
    ProgType.TRACING,
    ProgType.LSM,
    ProgType.STRUCT_OPS,
    ProgType.EXT,
    ProgType.SYSCALL,
}
"""Program types whose context has the same layout in memory as declared."""

_PROBED = {Mode.MEM: Mode.PROBE_MEM, Mode.MEMSX: Mode.PROBE_MEMSX}
_IN_ARENA = {
    Mode.MEM: Mode.PROBE_MEM32,
    Mode.MEMSX: Mode.PROBE_MEM32SX,
    Mode.ATOMIC: Mode.PROBE_ATOMIC,
}


def convert_accesses(code: NodeList, prog_type: int, skb: SkbLayout | None) -> None:
    """Rewrite loads that may fault to PROBE_MEM, arena accesses to arena modes, and fields of contexts that represent
    kernel structs to loads from those. Raises RewriteError for contexts that are not modelled.
    """

    def access(node: InsnNode) -> list[Insn | InsnNode] | None:
        insn, facts = node.insn, node.facts
        if facts is None or insn.cls not in (Cls.LDX, Cls.ST, Cls.STX):
            return None
        if facts.pointee is Pointee.CTX:
            return _context_access(insn, prog_type, skb)
        if facts.pointee is Pointee.BTF_ID and insn.cls == Cls.LDX:
            node.insn = _with_mode(insn, _PROBED)
        elif facts.pointee is Pointee.ARENA:
            node.insn = _with_mode(insn, _IN_ARENA)
        return None

    code.expand(access)


def _with_mode(insn: Insn, modes: dict[Mode, Mode]) -> Insn:
    return replace(insn, code=insn.code & 0x1F | modes[Mode(insn.mode)])


def _context_access(insn: Insn, prog_type: int, skb: SkbLayout | None) -> list[Insn | InsnNode] | None:
    if prog_type in _PLAIN_CONTEXTS:
        return None
    if prog_type == ProgType.SOCKET_FILTER and skb is not None:
        return [*skb_access(insn, skb)]
    raise RewriteError(f"fields of the context of program type {prog_type} are not modelled")
