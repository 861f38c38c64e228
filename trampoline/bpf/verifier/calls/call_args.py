"""Arguments of helpers: match between register contents and prototype (``check_func_arg``)."""

from errno import EFAULT, EINVAL

from trampoline.bpf.helpers.protos import ArgFlag, ArgSpec, HelperArg
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.access.map_fields import check_kptr, check_timer, use_spin_lock
from trampoline.bpf.verifier.access.memory import (
    check_alignment,
    check_helper_mem_access,
    check_mem_size_reg,
    check_ptr_off_reg,
)
from trampoline.bpf.verifier.access.struct_walk import same_struct
from trampoline.bpf.verifier.calls.const_args import check_const_str, constant_key
from trampoline.bpf.verifier.calls.dynptrs import held_at, use_dynptr
from trampoline.bpf.verifier.state.call_meta import CallMeta
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.type_names import type_name

_ANY_OFFSET = frozenset(
    {
        RegKind.PTR_TO_STACK,
        RegKind.PTR_TO_PACKET,
        RegKind.PTR_TO_PACKET_META,
        RegKind.PTR_TO_MAP_KEY,
        RegKind.PTR_TO_MAP_VALUE,
        RegKind.PTR_TO_MEM,
        RegKind.PTR_TO_BUF,
        RegKind.PTR_TO_ARENA,
        RegKind.SCALAR_VALUE,
    }
)
_PACKETS = (RegKind.PTR_TO_PACKET, RegKind.PTR_TO_PACKET_META)


def check_args(env: Env, meta: CallMeta) -> None:
    """Check R1 to R5 as far as the prototype has them, and collect the call's data from them."""
    for index, spec in enumerate(meta.proto.args):
        _check_arg(env, meta, index, spec)


def _check_arg(env: Env, meta: CallMeta, index: int, spec: ArgSpec) -> None:
    regno = index + 1
    reg = env.read(regno)
    if spec.type is HelperArg.ANYTHING:
        if not reg.is_scalar and not env.capabilities.ptr_leaks:
            env.denied(f"R{regno} leaks addr into helper function")
        return
    if reg.kind in _PACKETS:
        env.denied("helper access to the packet is not allowed")
    kind = _map_arg(env, meta, spec) if spec.type is HelperArg.MAP_VALUE else spec.type
    if not (reg.is_null and spec.has(ArgFlag.NULL)):
        _check_type(env, meta, regno, reg, kind, spec)
        _check_offset(env, regno, reg, kind, spec)
    if spec.has(ArgFlag.RELEASE):
        if kind is HelperArg.DYNPTR:
            held = held_at(env, reg)
            if reg.kind is RegKind.PTR_TO_STACK and (held is None or not held.ref_obj_id):
                env.invalid(f"arg {regno} is an unacquired reference")
            if reg.kind is not RegKind.PTR_TO_STACK:
                env.invalid("cannot release unowned const bpf_dynptr")
        elif not reg.ref_obj_id and not reg.is_null:
            env.invalid(f"R{regno} must be referenced when passed to release function")
        meta.release_regno = regno
    if reg.ref_obj_id and kind is not HelperArg.KPTR:
        if meta.ref_obj_id:
            env.refuse(EFAULT, f"more than one arg with ref_obj_id R{regno} {reg.ref_obj_id} {meta.ref_obj_id}")
        meta.ref_obj_id = reg.ref_obj_id
    _take(env, meta, index, reg, kind, spec)


def _map_arg(env: Env, meta: CallMeta, spec: ArgSpec) -> HelperArg:
    """Argument type for a map's value, depending on the map (``resolve_map_arg_type``)."""
    if meta.map is None:
        env.denied("invalid map_ptr to access map->type")
    if meta.map.type in (MapType.SOCKMAP, MapType.SOCKHASH):
        if spec.type is HelperArg.MAP_VALUE and not spec.has(ArgFlag.UNINIT):
            return HelperArg.BTF_ID_SOCK_COMMON
        env.invalid("invalid arg_type for sockmap/sockhash")
    return spec.type


def _check_type(env: Env, meta: CallMeta, regno: int, reg: Reg, kind: HelperArg, spec: ArgSpec) -> None:
    """``check_reg_type``."""
    rules = env.kernel.rules.calls
    flags = reg.flags
    if spec.has(ArgFlag.RDONLY):
        flags &= ~Flag.MEM_RDONLY
    if spec.has(ArgFlag.NULL):
        flags &= ~Flag.PTR_MAYBE_NULL
    accepted = rules.arg_types[kind]
    if (reg.kind, flags) not in accepted:
        expected = ", ".join(type_name(*one, rules.ringbuf_word) for one in accepted)
        env.denied(f"R{regno} type={env.type_name(reg)} expected={expected}")
    if reg.kind is not RegKind.PTR_TO_BTF_ID:
        return
    if (RegKind.PTR_TO_STACK, Flag.NONE) in accepted:
        if not spec.has(ArgFlag.RDONLY):
            name = env.type_name(reg)
            env.denied(f"{_function(meta)}() may write into memory pointed by R{regno} type={name}")
        return
    if reg.has(Flag.MEM_PERCPU):
        return
    if reg.maybe_null and (not spec.has(ArgFlag.NULL) or spec.has(ArgFlag.RELEASE)):
        env.denied(f"Possibly NULL pointer passed to helper arg{regno}")
    if kind is HelperArg.BTF_ID and not spec.btf:
        return
    need = "sock_common" if kind is HelperArg.BTF_ID_SOCK_COMMON else spec.btf
    if kind in (HelperArg.BTF_ID, HelperArg.BTF_ID_SOCK_COMMON):
        _check_struct(env, regno, reg, need, strict=spec.has(ArgFlag.RELEASE))


def _function(meta: CallMeta) -> str:
    return f"bpf_{meta.name}"


def _check_struct(env: Env, regno: int, reg: Reg, need: str, *, strict: bool) -> None:
    kernel = env.kernel.btf
    btf = reg.btf or kernel
    wanted = kernel.struct_named(need)
    if not wanted or not same_struct(btf, reg.btf_id, reg.off, kernel, wanted, strict=strict):
        env.denied(f"R{regno} is of type {btf.type(reg.btf_id).name} but {need} is expected")


def _check_offset(env: Env, regno: int, reg: Reg, kind: HelperArg, spec: ArgSpec) -> None:
    """``check_func_arg_reg_off``."""
    released = spec.has(ArgFlag.RELEASE)
    if env.kernel.rules.calls.release_zero_off:
        if released and not (kind is HelperArg.DYNPTR and reg.kind is RegKind.PTR_TO_STACK):
            if reg.off:
                env.invalid(f"R{regno} must have zero offset when passed to release func or trusted arg to kfunc")
            check_ptr_off_reg(env, regno)
            return
    elif released and reg.kind is RegKind.PTR_TO_BTF_ID and reg.off:
        env.invalid(f"R{regno} must have zero offset when passed to release func")
    elif kind is HelperArg.RINGBUF_MEM:
        check_ptr_off_reg(env, regno)
        return
    if reg.kind not in _ANY_OFFSET:
        check_ptr_off_reg(env, regno, fixed_off_ok=reg.kind is RegKind.PTR_TO_BTF_ID)


def _take(env: Env, meta: CallMeta, index: int, reg: Reg, kind: HelperArg, spec: ArgSpec) -> None:
    """Check requirements of the argument's kind beyond the register type, and collect the call's data from it."""
    regno = index + 1
    if kind is HelperArg.CONST_MAP_PTR:
        _take_map(env, meta, reg)
    elif kind is HelperArg.MAP_KEY:
        if meta.map is None:
            env.denied("invalid map_ptr to access map->key")
        meta.written.append((regno, _memory(env, regno, meta.map.key_size, spec)))
        meta.const_key = constant_key(env, regno, meta.map)
    elif kind is HelperArg.MAP_VALUE:
        if reg.is_null and spec.has(ArgFlag.NULL):
            return
        if meta.map is None:
            env.denied("invalid map_ptr to access map->value")
        meta.written.append((regno, _memory(env, regno, meta.map.value_size, spec)))
    elif kind in (HelperArg.FIXED_SIZE_MEM, HelperArg.LONG):
        meta.written.append((regno, _memory(env, regno, spec.size, spec)))
        if spec.has(ArgFlag.ALIGNED) or kind is HelperArg.LONG:
            check_alignment(env, env.reg(regno), 0, spec.size, strict=True)
    elif kind.is_size:
        pointed = meta.proto.args[index - 1]
        raw, write = pointed.has(ArgFlag.UNINIT), pointed.has(ArgFlag.UNINIT | ArgFlag.WRITE)
        zero_ok = kind is HelperArg.CONST_SIZE_OR_ZERO
        meta.largest_size = reg.var.umax
        count = check_mem_size_reg(env, regno - 1, regno, write=write, zero_ok=zero_ok, raw=raw)
        meta.written.append((regno - 1, count))
    elif kind is HelperArg.CONST_ALLOC_SIZE_OR_ZERO:
        if not reg.var.is_const:
            env.denied(f"R{regno} is not a known constant'")
        meta.mem_size = reg.var.value
    elif kind is HelperArg.PERCPU_BTF_ID:
        if not reg.btf_id:
            env.denied(f"Helper has invalid btf_id in R{regno}")
        meta.ret_btf, meta.ret_btf_id = reg.btf, reg.btf_id
    elif kind is HelperArg.FUNC:
        meta.subprog = reg.subprog
    elif kind is HelperArg.CONST_STR:
        check_const_str(env, regno)
    elif kind is HelperArg.SPIN_LOCK:
        use_spin_lock(env, regno, lock=meta.name == "spin_lock")
    elif kind is HelperArg.TIMER:
        check_timer(env, regno)
        meta.map, meta.map_uid = reg.map, reg.map_uid
    elif kind is HelperArg.KPTR:
        check_kptr(env, regno)
    elif kind is HelperArg.DYNPTR:
        meta.dynptr = use_dynptr(env, regno, spec)


def _memory(env: Env, regno: int, size: int, spec: ArgSpec) -> int:
    raw, write = spec.has(ArgFlag.UNINIT), spec.has(ArgFlag.UNINIT | ArgFlag.WRITE)
    return check_helper_mem_access(env, regno, size, write=write, raw=raw)


def _take_map(env: Env, meta: CallMeta, reg: Reg) -> None:
    if meta.map is not None and (meta.map is not reg.map or meta.map_uid != reg.map_uid):
        if meta.map_uid != reg.map_uid:
            what = f"timer pointer in R1 map_uid={meta.map_uid} doesn't match map pointer in R2 map_uid={reg.map_uid}"
            env.refuse(EINVAL, what)
        env.invalid("workqueue/timer pointer in R1 doesn't match map pointer in R2")
    meta.map, meta.map_uid = reg.map, reg.map_uid
