"""Atomic operations in the walk (``check_atomic``)."""

from trampoline.bpf.isa.insn import Atomic, Insn, Size
from trampoline.bpf.verifier.access.memory import check_mem_access
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import type_name
from trampoline.bpf.verifier.state.state import UNKNOWN_REG
from trampoline.bpf.verifier.values.kinds import RegKind

_BYTES = {Size.B: 1, Size.H: 2, Size.W: 4, Size.DW: 8}
_FORBIDDEN = frozenset(
    {
        RegKind.PTR_TO_CTX,
        RegKind.PTR_TO_PACKET,
        RegKind.PTR_TO_PACKET_META,
        RegKind.PTR_TO_FLOW_KEYS,
        RegKind.PTR_TO_SOCKET,
        RegKind.PTR_TO_SOCK_COMMON,
        RegKind.PTR_TO_TCP_SOCK,
        RegKind.PTR_TO_XDP_SOCK,
    }
)


def step(env: Env, insn: Insn) -> None:
    """Walk one instruction; its fields are already checked."""
    size = _BYTES[insn.size]
    if insn.imm == Atomic.LOAD_ACQ:
        env.read(insn.src)
        env.check_writable(insn.dst)
        _check_target(env, insn.src)
        check_mem_access(env, insn.src, insn.off, size, False, insn.dst, strict=True)
        return
    if insn.imm == Atomic.STORE_REL:
        env.read(insn.src)
        env.read(insn.dst)
        _check_target(env, insn.dst)
        check_mem_access(env, insn.dst, insn.off, size, True, insn.src, strict=True)
        return
    value = env.read(insn.src)
    env.read(insn.dst)
    leaks = env.capabilities.ptr_leaks
    if insn.imm == Atomic.CMPXCHG:
        compared = env.read(0)
        if not compared.is_scalar and not leaks:
            env.denied("R0 leaks addr into mem")
    if not value.is_scalar and not leaks:
        env.denied(f"R{insn.src} leaks addr into mem")
    _check_target(env, insn.dst)
    loaded = -1
    if insn.imm & 1:
        loaded = 0 if insn.imm == Atomic.CMPXCHG else insn.src
        env.check_writable(loaded)
    # The old value is read first, into its register if it is fetched, as by a load.
    before = env.frame.regs[loaded] if loaded >= 0 else UNKNOWN_REG
    check_mem_access(env, insn.dst, insn.off, size, False, loaded, strict=True)
    result = env.frame.regs[loaded] if loaded >= 0 else UNKNOWN_REG
    if loaded >= 0:
        env.frame.regs[loaded] = before
    check_mem_access(env, insn.dst, insn.off, size, True, -1, strict=True)
    if loaded >= 0:
        env.frame.regs[loaded] = result


def _check_target(env: Env, regno: int) -> None:
    """``atomic_ptr_type_ok``."""
    reg = env.frame.regs[regno]
    if reg.kind in _FORBIDDEN:
        env.denied(f"BPF_ATOMIC stores into R{regno} {type_name(reg)} is not allowed")
