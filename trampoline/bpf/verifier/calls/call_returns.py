"""Result of a helper: R0 after the call."""

from errno import EINVAL
from types import MappingProxyType

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.helpers.protos import Ret
from trampoline.bpf.verifier.access.value_regions import special_fields
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.call_meta import CallMeta
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, scalar_reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar_range import from_error, signed_range

_GIVES_SIZE = (
    "get_stack",
    "get_task_stack",
    "probe_read_str",
    "probe_read_kernel_str",
    "probe_read_user_str",
)
_ACQUIRES = ("sk_lookup_tcp", "sk_lookup_udp", "skc_lookup_tcp", "ringbuf_reserve", "kptr_xchg")
_CASTS = (
    "tcp_sock",
    "sk_fullsock",
    "skc_to_tcp_sock",
    "skc_to_tcp6_sock",
    "skc_to_udp6_sock",
    "skc_to_mptcp_sock",
    "skc_to_tcp_timewait_sock",
    "skc_to_tcp_request_sock",
)
_KINDS = MappingProxyType(
    {
        Ret.MAP_VALUE: RegKind.PTR_TO_MAP_VALUE,
        Ret.RINGBUF_MEM: RegKind.PTR_TO_MEM,
        Ret.BTF_ID: RegKind.PTR_TO_BTF_ID,
        Ret.BTF_ID_TRUSTED: RegKind.PTR_TO_BTF_ID,
    }
)


def set_result(env: Env, meta: CallMeta) -> None:
    """Set R0 to the helper's result; unreadable for a helper without one."""
    ret = meta.proto.ret
    if ret is Ret.VOID:
        return
    if ret is Ret.INTEGER:
        env.set_reg(0, _number(env, meta))
        return
    reg = _pointer(env, meta)
    if reg.maybe_null or _has_lock(env, reg):
        reg = reg._replace(id=env.new_id())
    if meta.name in _CASTS:
        reg = reg._replace(ref_obj_id=meta.ref_obj_id)
    elif meta.name in _ACQUIRES:
        number = refs.acquire(env)
        reg = reg._replace(id=number, ref_obj_id=number)
    env.set_reg(0, reg)


def _has_lock(env: Env, reg: Reg) -> bool:
    if reg.kind is not RegKind.PTR_TO_MAP_VALUE or reg.map is None:
        return False
    return any(name == "bpf_spin_lock" for _, _, name in special_fields(env.program.btf, reg.map))


def _number(env: Env, meta: CallMeta) -> Reg:
    """A number with its known range (``do_refine_retval_range``)."""
    if meta.name in _GIVES_SIZE and meta.largest_size is not None:
        return scalar_reg(from_error(meta.largest_size))
    if meta.name == "get_smp_processor_id" and env.kernel.rules.calls.cpu_number_bounded:
        return scalar_reg(signed_range(0, env.kernel.cpus - 1))
    env.mark_unknown(0)
    return env.reg(0)


def _pointer(env: Env, meta: CallMeta) -> Reg:
    proto = meta.proto
    flags = Flag.PTR_MAYBE_NULL if proto.ret_null else Flag.NONE
    if proto.ret is Ret.MAP_VALUE:
        if meta.map is None:
            env.refuse(EINVAL, "kernel subsystem misconfigured verifier")
        spec = meta.map
        known = meta.const_key is not None and meta.const_key < spec.max_entries
        if meta.name == "map_lookup_elem" and known:
            flags &= ~Flag.PTR_MAYBE_NULL
        return Reg(RegKind.PTR_TO_MAP_VALUE, flags, map=spec, map_uid=meta.map_uid)
    if proto.ret is Ret.RINGBUF_MEM:
        return Reg(RegKind.PTR_TO_MEM, flags | Flag.MEM_RINGBUF, mem_size=meta.mem_size)
    if proto.ret is Ret.DYNPTR_MEM:
        held = meta.dynptr or Reg(RegKind.NOT_INIT)
        slice_of = ("slice", held.id)
        return Reg(RegKind.PTR_TO_MEM, flags, mem_size=meta.mem_size, ref_obj_id=held.ref_obj_id, detail=slice_of)
    if proto.ret is Ret.MEM_OR_BTF_ID:
        return _percpu(env, meta, flags | (Flag.MEM_RDONLY if proto.ret_rdonly else Flag.NONE))
    if proto.ret is Ret.BTF_ID_TRUSTED:
        flags |= Flag.PTR_TRUSTED
    kernel = env.kernel.btf
    struct = kernel.struct_named(proto.ret_btf) if proto.ret_btf else 0
    if not struct:
        env.unsupported(f"the result of bpf_{meta.name}")
    return Reg(RegKind.PTR_TO_BTF_ID, flags, btf=kernel, btf_id=struct)


def _percpu(env: Env, meta: CallMeta, flags: Flag) -> Reg:
    """A CPU's copy of a kernel variable: a struct, or memory of its size."""
    btf: Btf = meta.ret_btf or env.kernel.btf
    kind = btf.unmodified(meta.ret_btf_id)
    if kind.kind in (BtfKind.STRUCT, BtfKind.UNION):
        # MEM_RDONLY is not set for structs, which are read-only anyway.
        return Reg(RegKind.PTR_TO_BTF_ID, flags & ~Flag.MEM_RDONLY, btf=btf, btf_id=kind.id)
    try:
        size = btf.value(kind.id).size
    except BtfError:
        env.invalid(f"unable to resolve the size of type '{kind.name}'")
    return Reg(RegKind.PTR_TO_MEM, flags, mem_size=size)
