"""Resources that a path has acquired and must release: references, locks."""

from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import NOT_INIT, UNKNOWN_REG, Ref, Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind


def acquire(env: Env, *, kind: str = "pointer", pointer: int = 0) -> int:
    """Record a new reference, acquired at ``env.slot``; returns its id, for ``Reg.ref_obj_id``."""
    ref = Ref(env.new_id(), env.slot, kind, env.frame.number, pointer)
    env.state.refs = (*env.state.refs, ref)
    return ref.id


def holds(env: Env, ref_obj_id: int) -> bool:
    """True if this reference is held."""
    return any(ref.id == ref_obj_id for ref in env.state.refs)


def forget(env: Env, ref_obj_id: int) -> bool:
    """Remove a reference without changing registers. False if no reference has this id."""
    if not holds(env, ref_obj_id):
        return False
    env.state.refs = tuple(ref for ref in env.state.refs if ref.id != ref_obj_id)
    return True


def release(env: Env, ref_obj_id: int) -> bool:
    """Release a reference: registers and spilled registers with it are no longer pointers (``release_reference``).

    False if no reference has this id.
    """
    if not forget(env, ref_obj_id):
        return False
    gone = UNKNOWN_REG if env.capabilities.ptr_leaks else NOT_INIT

    def invalidated(reg: Reg) -> Reg:
        return gone if reg.ref_obj_id == ref_obj_id else reg

    env.state.each_reg(invalidated)
    return True


def leave_rcu(env: Env) -> None:
    """Leave the outermost RCU read section: pointers that it protected become untrusted."""

    def untrusted(reg: Reg) -> Reg:
        if reg.kind is RegKind.PTR_TO_BTF_ID and reg.flags & Flag.MEM_RCU:
            return reg._replace(flags=(reg.flags & ~(Flag.MEM_RCU | Flag.PTR_MAYBE_NULL)) | Flag.PTR_UNTRUSTED)
        return reg

    env.state.each_reg(untrusted)
