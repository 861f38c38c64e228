"""Pointers that may be NULL, and the effect of comparing them with NULL."""

from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.access.value_regions import special_fields
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, VerifierState, known_reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_NEVER_NULL = frozenset(
    {
        RegKind.PTR_TO_SOCKET,
        RegKind.PTR_TO_TCP_SOCK,
        RegKind.PTR_TO_MAP_VALUE,
        RegKind.PTR_TO_MAP_KEY,
        RegKind.PTR_TO_SOCK_COMMON,
    }
)


def surely_not_null(env: Env, reg: Reg) -> bool:
    """``reg_not_null``: a comparison with 0 is decided."""
    if reg.maybe_null:
        return False
    if reg.kind in _NEVER_NULL:
        return True
    if not env.rules.trusts_more_pointers:
        return False
    if reg.kind is RegKind.PTR_TO_BTF_ID:
        trusted = bool(reg.flags & (Flag.PTR_TRUSTED | Flag.MEM_ALLOC) or reg.ref_obj_id)
        return trusted and not reg.flags & Flag.PTR_UNTRUSTED
    return reg.kind is RegKind.PTR_TO_MEM and not reg.flags & Flag.PTR_UNTRUSTED


def not_null(env: Env, reg: Reg) -> Reg:
    """The register after it is known not to be NULL (``mark_ptr_not_null_reg``)."""
    flags = reg.flags & ~Flag.PTR_MAYBE_NULL
    if reg.kind is not RegKind.PTR_TO_MAP_VALUE or reg.map is None:
        return reg._replace(flags=flags)
    if reg.map.inner is not None:
        return reg._replace(kind=RegKind.CONST_PTR_TO_MAP, flags=flags, map=reg.map.inner, map_uid=reg.id)
    if reg.map.type == MapType.XSKMAP:
        return reg._replace(kind=RegKind.PTR_TO_XDP_SOCK, flags=flags)
    if reg.map.type in (MapType.SOCKMAP, MapType.SOCKHASH):
        return reg._replace(kind=RegKind.PTR_TO_SOCKET, flags=flags)
    return reg._replace(flags=flags)


def mark(env: Env, state: VerifierState, regno: int, is_null: bool) -> None:
    """Mark register ``regno`` of the innermost frame of ``state``, and all with the same id, as NULL or not NULL
    (``mark_ptr_or_null_regs``).
    """
    checked = state.frame.regs[regno]
    if is_null and checked.ref_obj_id and checked.ref_obj_id == checked.id:
        state.refs = tuple(ref for ref in state.refs if ref.id != checked.ref_obj_id)

    def marked(reg: Reg) -> Reg:
        if not reg.maybe_null or reg.id != checked.id:
            return reg
        if is_null:
            return known_reg(0)
        found = not_null(env, reg)
        if (
            found.kind is RegKind.PTR_TO_MAP_VALUE
            and found.map is not None
            and special_fields(env.program.btf, found.map)
        ):
            return found
        return found._replace(id=0)

    if not checked.id:  # no id: only this register is affected
        state.frame.regs[regno] = marked(checked)
        return
    state.each_reg(marked)
