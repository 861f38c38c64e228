"""Access to a program's context, by program type (``is_valid_access`` of ``struct bpf_verifier_ops``)."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.access.btf_context import BTF_SLOTS, btf_field
from trampoline.bpf.verifier.access.context_field import ContextAccess, ContextField
from trampoline.bpf.verifier.access.packet_context import packet_field
from trampoline.bpf.verifier.rules.call_rules import CallRules
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar import ZERO

PT_REGS_SIZE = 168
_PERF_EVENT_SIZE = PT_REGS_SIZE + 16
_PERF_MAX_TRACE_SIZE = 8192
_SYSCALL_SIZE = 0xFFFF


def check_ctx_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """Check a load or store of ``size`` bytes at the constant offset ``off`` of the context in register ``regno``.

    ``memory.check_mem_access`` has checked that the register's offset is constant and added it to ``off``. Refuses, or
    records facts (``env.accessed_args``, ``env.max_ctx_offset``) and, for a load with ``value_regno`` >= 0, sets that
    register to the loaded value.
    """
    found = _FIELDS.get(context_type(env), _none)(env, ContextAccess(off, size, write))
    if found is None:
        env.denied(f"invalid bpf_context access off={off} size={size}")
    env.max_ctx_offset = max(env.max_ctx_offset, off + size)
    if write or value_regno < 0:
        return
    if found.kind is RegKind.SCALAR_VALUE:
        env.set_reg(value_regno, UNKNOWN_REG if found.number is None else Reg(RegKind.SCALAR_VALUE, var=found.number))
        return
    number = env.new_id() if found.flags & Flag.PTR_MAYBE_NULL else 0
    env.set_reg(value_regno, Reg(found.kind, found.flags, 0, ZERO, number, btf=found.btf, btf_id=found.btf_id))


def context_type(env: Env) -> int:
    """The program type that determines the context: an extension has the type of the program that it extends."""
    program, target = env.program, env.target
    while program.prog_type == ProgType.EXT and target is not None and target.prog is not None:
        program, target = target.prog, None
    return program.prog_type


def _no_stores(rules: CallRules) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Plain:
    """A context without fields: allows any aligned access to bytes ``first`` to ``end`` - 1."""

    first: int
    end: int
    whole: bool
    """True if the access must also end before ``end``."""
    writable: Callable[[CallRules], bool] = _no_stores
    """True if the rules allow stores."""

    def __call__(self, env: Env, access: ContextAccess) -> ContextField | None:
        if not self.first <= access.off < self.end or access.off % access.size:
            return None
        if self.whole and access.off + access.size > self.end:
            return None
        if access.write and not self.writable(env.kernel.rules.calls):
            return None
        return ContextField()


def _none(env: Env, access: ContextAccess) -> ContextField | None:
    env.unsupported(f"contexts of program type {context_type(env)}")


_raw_tracepoint = _Plain(0, BTF_SLOTS, whole=False)


def _writable_tracepoint(env: Env, access: ContextAccess) -> ContextField | None:
    if access.off == 0:
        if access.size != 8 or access.write:
            return None
        return ContextField(RegKind.PTR_TO_TP_BUFFER)
    return _raw_tracepoint(env, access)


def _perf_event(env: Env, access: ContextAccess) -> ContextField | None:
    """``pe_prog_is_valid_access``: whole registers; of the sample's period and address also parts."""
    if not 0 <= access.off < _PERF_EVENT_SIZE or access.write or access.off % access.size:
        return None
    return ContextField() if access.off >= PT_REGS_SIZE or access.size == 8 else None


def _tracing(env: Env, access: ContextAccess) -> ContextField | None:
    """``bpf_tracing_btf_ctx_access``."""
    if not 0 <= access.off < BTF_SLOTS or access.write or access.off % access.size:
        return None
    return btf_field(env, access)


_FIELDS: MappingProxyType[int, Callable[[Env, ContextAccess], ContextField | None]] = MappingProxyType(
    {
        ProgType.SOCKET_FILTER: packet_field,
        ProgType.KPROBE: _Plain(0, PT_REGS_SIZE, whole=True, writable=lambda rules: rules.kprobe_writes),
        ProgType.TRACEPOINT: _Plain(8, _PERF_MAX_TRACE_SIZE, whole=False),
        ProgType.PERF_EVENT: _perf_event,
        ProgType.RAW_TRACEPOINT: _raw_tracepoint,
        ProgType.RAW_TRACEPOINT_WRITABLE: _writable_tracepoint,
        ProgType.TRACING: _tracing,
        ProgType.LSM: btf_field,
        ProgType.SYSCALL: _Plain(0, _SYSCALL_SIZE, whole=False, writable=lambda _: True),
    }
)
