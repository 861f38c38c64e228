"""Result of a kernel function: R0 after the call, by its prototype and flags."""

from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.btf.btf import Type
from trampoline.bpf.errors import BtfError
from trampoline.bpf.helpers.kfuncs import Kf
from trampoline.bpf.verifier.access.context import context_type
from trampoline.bpf.verifier.calls.kfunc_args import KfuncCall
from trampoline.bpf.verifier.rules.context_types import kernel_struct
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_STRUCTS = (BtfKind.STRUCT, BtfKind.UNION)
_WRITABLE_SIZES = {"bpf_session_cookie": 8}


def set_kfunc_result(env: Env, call: KfuncCall) -> None:
    """Set R0 to the function's result; unreadable for a void function."""
    btf = env.kernel.btf
    _, ret = btf.prototype(call.func.proto_id)
    kind = btf.unmodified(ret)
    if kind.kind is BtfKind.VOID:
        return
    if kind.kind is not BtfKind.PTR:
        env.mark_unknown(0)
        return
    reg = _pointer(env, call, btf.unmodified(kind.type_id))
    null = call.kfunc.has(Kf.RET_NULL)
    if null:
        reg = reg._replace(flags=reg.flags | Flag.PTR_MAYBE_NULL, id=env.new_id())
    if call.kfunc.has(Kf.ACQUIRE):
        number = refs.acquire(env)
        reg = reg._replace(ref_obj_id=number, id=number if null else 0)
    env.set_reg(0, reg)


def _pointer(env: Env, call: KfuncCall, pointed: Type) -> Reg:
    btf, name = env.kernel.btf, call.kfunc.name
    if name == "bpf_rdonly_cast":
        return _cast(env, call)
    if name == "bpf_cast_to_kern_ctx":
        struct = kernel_struct(btf, context_type(env))
        if not struct:
            env.unsupported("the kernel's context of this program type")
        return Reg(RegKind.PTR_TO_BTF_ID, Flag.PTR_TRUSTED, btf=btf, btf_id=struct)
    if pointed.kind in _STRUCTS:
        flags = Flag.NONE
        if call.kfunc.has(Kf.ITER_NEXT):
            env.unsupported(f"the result of {name}")
        return Reg(RegKind.PTR_TO_BTF_ID, flags, btf=btf, btf_id=pointed.id)
    if name in _WRITABLE_SIZES:
        return Reg(RegKind.PTR_TO_MEM, mem_size=_WRITABLE_SIZES[name])
    try:
        size = btf.value(pointed.id).size
    except BtfError:
        size = 0
    if pointed.kind is BtfKind.VOID or not size:
        env.unsupported(f"the result of {name}")
    return Reg(RegKind.PTR_TO_MEM, Flag.MEM_RDONLY, mem_size=size, ref_obj_id=call.ref_obj_id)


def _cast(env: Env, call: KfuncCall) -> Reg:
    """bpf_rdonly_cast: an untrusted pointer to the struct with the given type id."""
    type_id = call.constant or 0
    if type_id == 0 and env.kernel.rules.kfuncs.void_cast:
        return Reg(RegKind.PTR_TO_MEM, Flag.MEM_RDONLY | Flag.PTR_UNTRUSTED)
    try:
        kind = env.kernel.btf.type(type_id)
    except BtfError:
        kind = env.kernel.btf.type(0)
    if kind.kind not in _STRUCTS:
        env.invalid("kfunc bpf_rdonly_cast type ID argument must be of a struct")
    return Reg(RegKind.PTR_TO_BTF_ID, Flag.PTR_UNTRUSTED, btf=env.kernel.btf, btf_id=type_id)
