"""LD_IMM64: maps, kernel variables and functions (``resolve_pseudo_ldimm64``, ``check_ld_imm``)."""

from errno import E2BIG, EBADF, EINVAL, ENOENT

from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.isa.insn import Imm64, Insn
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.calls.map_calls import check_map_prog_compatibility
from trampoline.bpf.verifier.prepass.subprogs import target_of
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, known_reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

MAX_USED_MAPS = 64
MAX_VAR_OFF = 1 << 29
_EPROTO = 71


def resolve(env: Env, insn: Insn) -> None:
    """Check an immediate before the walk: refuses invalid ones, and records the maps used."""
    if insn.src == Imm64.VALUE:
        return
    if insn.src == Imm64.BTF_ID:
        _ksym(env, insn)
        return
    if insn.src == Imm64.FUNC:
        return
    if insn.src in (Imm64.MAP_IDX, Imm64.MAP_IDX_VALUE):
        env.refuse(_EPROTO, "fd_idx without fd_array is invalid")
    if insn.src not in (Imm64.MAP_FD, Imm64.MAP_VALUE) or (insn.src == Imm64.MAP_FD and insn.imm >> 32):
        env.invalid("unrecognized bpf_ld_imm64 insn")
    spec = map_of(env, insn)
    check_map_prog_compatibility(env, spec)
    if insn.src == Imm64.MAP_VALUE:
        _check_direct_value(env, spec, insn.imm >> 32)
    env.use_map(spec)
    if len(env.maps) > MAX_USED_MAPS:
        env.refuse(E2BIG, f"The total number of maps per program has reached the limit of {MAX_USED_MAPS}")


def map_of(env: Env, insn: Insn) -> MapSpec:
    """The map whose index is the immediate's low half. A map without a type represents a file that is not a map."""
    number = insn.imm & 0xFFFFFFFF
    if number >= len(env.program.maps):
        env.refuse(EBADF, f"fd {number} is not pointing to valid bpf_map")
    spec = env.program.maps[number]
    if spec.type == MapType.UNSPEC:
        env.refuse(EINVAL, f"fd {number} is not pointing to valid bpf_map")
    return spec


def _check_direct_value(env: Env, spec: MapSpec, off: int) -> None:
    if off >= MAX_VAR_OFF:
        env.invalid(f"direct value offset of {off} is not allowed")
    if spec.type in (MapType.ARENA, MapType.INSN_ARRAY):
        env.unsupported(f"addresses of {MapType(spec.type).name} maps")
    if spec.type != MapType.ARRAY:
        env.invalid("no direct value access support for this map type")
    refused = f"invalid access to map value pointer, value_size={spec.value_size} off={off}"
    if spec.max_entries != 1:
        env.refuse(524, refused)
    if off >= spec.value_size:
        env.invalid(refused)


def _ksym(env: Env, insn: Insn) -> Reg:
    """The address of a kernel variable or function (``check_pseudo_btf_id``)."""
    btf, type_id = env.kernel.btf, insn.imm & 0xFFFFFFFF
    if insn.imm >> 32:
        env.unsupported("symbols of modules")
    if not 0 < type_id < len(btf):
        env.refuse(ENOENT, f"ldimm64 insn specifies invalid btf_id {type_id}.")
    record = btf.type(type_id)
    if record.kind is BtfKind.FUNC:
        return Reg(RegKind.PTR_TO_MEM, Flag.MEM_RDONLY)
    if record.kind is not BtfKind.VAR:
        env.invalid(f"pseudo btf_id {type_id} in ldimm64 isn't KIND_VAR or KIND_FUNC")
    value = btf.value(record.type_id)
    if type_id in btf.percpu_variables:
        return Reg(RegKind.PTR_TO_BTF_ID, Flag.MEM_PERCPU, btf=btf, btf_id=value.type_id)
    if value.kind in (BtfKind.STRUCT, BtfKind.UNION):
        return Reg(RegKind.PTR_TO_BTF_ID, btf=btf, btf_id=btf.unmodified(record.type_id).id)
    try:
        size = value.size
    except BtfError:
        env.invalid(f"ldimm64 unable to resolve the size of type '{record.name}'")
    return Reg(RegKind.PTR_TO_MEM, Flag.MEM_RDONLY, mem_size=size)


def step(env: Env, insn: Insn) -> None:
    """Walk one LD_IMM64."""
    env.check_writable(insn.dst)
    if insn.src == Imm64.VALUE:
        reg = known_reg(insn.imm)
    elif insn.src == Imm64.BTF_ID:
        reg = _ksym(env, insn)
    elif insn.src == Imm64.FUNC:
        reg = _function(env, insn)
    else:
        spec = map_of(env, insn)
        if insn.src == Imm64.MAP_FD:
            reg = Reg(RegKind.CONST_PTR_TO_MAP, map=spec)
        else:
            reg = Reg(RegKind.PTR_TO_MAP_VALUE, map=spec, off=insn.imm >> 32)
    env.frame.regs[insn.dst] = reg


def _function(env: Env, insn: Insn) -> Reg:
    number = env.subprog_at[target_of(env.slot, insn)]
    if not env.subprog_types:
        env.invalid("missing btf func_info")
    assert env.program.btf is not None
    if env.program.btf.type(env.subprog_types[number]).count != 0:
        env.invalid("callback function not static")
    return Reg(RegKind.PTR_TO_FUNC, subprog=number)
