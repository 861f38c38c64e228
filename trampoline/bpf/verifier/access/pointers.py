"""Accesses to kernel structures by BTF: PTR_TO_BTF_ID, and the struct of a map pointer."""

from errno import EACCES, EPERM
from types import MappingProxyType

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.access.struct_walk import StructWalkResult, WalkFault, find_field
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.result import Pointee
from trampoline.bpf.verifier.state.sections import in_rcu_section
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar import ZERO

ENOTSUPP = 524
TRUSTED_MODIFIERS = Flag.MEM_ALLOC | Flag.PTR_TRUSTED | Flag.NON_OWN_REF
_ARRAYS = (
    MapType.ARRAY,
    MapType.PERCPU_ARRAY,
    MapType.PROG_ARRAY,
    MapType.PERF_EVENT_ARRAY,
    MapType.CGROUP_ARRAY,
    MapType.ARRAY_OF_MAPS,
)
_HASHES = (
    MapType.HASH,
    MapType.PERCPU_HASH,
    MapType.LRU_HASH,
    MapType.LRU_PERCPU_HASH,
    MapType.HASH_OF_MAPS,
)
_STORAGES = (MapType.SK_STORAGE, MapType.INODE_STORAGE, MapType.TASK_STORAGE, MapType.CGRP_STORAGE)
MAP_STRUCTS = MappingProxyType(
    dict.fromkeys(_ARRAYS, "bpf_array")
    | dict.fromkeys(_HASHES, "bpf_htab")
    | dict.fromkeys(_STORAGES, "bpf_local_storage_map")
    | {
        MapType.LPM_TRIE: "lpm_trie",
        MapType.STACK_TRACE: "bpf_stack_map",
        MapType.QUEUE: "bpf_queue_stack",
        MapType.STACK: "bpf_queue_stack",
        MapType.RINGBUF: "bpf_ringbuf_map",
        MapType.USER_RINGBUF: "bpf_ringbuf_map",
        MapType.BLOOM_FILTER: "bpf_bloom_filter",
        MapType.ARENA: "bpf_arena",
        MapType.INSN_ARRAY: "bpf_insn_array",
        MapType.DEVMAP: "bpf_dtab",
        MapType.DEVMAP_HASH: "bpf_dtab",
        MapType.CPUMAP: "bpf_cpu_map",
        MapType.XSKMAP: "xsk_map",
        MapType.SOCKMAP: "bpf_stab",
        MapType.SOCKHASH: "bpf_shtab",
        MapType.CGROUP_STORAGE: "bpf_cgroup_storage_map",
        MapType.PERCPU_CGROUP_STORAGE: "bpf_cgroup_storage_map",
        MapType.REUSEPORT_SOCKARRAY: "reuseport_array",
    }
)
"""The kernel's struct of each map type (``map_btf_id``)."""


def is_trusted(reg: Reg) -> bool:
    """``is_trusted_reg``: the pointer refers to an existing object."""
    if reg.ref_obj_id:
        return True
    return bool(reg.flags & TRUSTED_MODIFIERS) and not reg.flags & ~TRUSTED_MODIFIERS


def check_btf_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """``check_ptr_to_btf_access``: ``off`` is the instruction's offset, without the register's.

    Refuses, or sets ``value_regno`` (if >= 0) to the result of the load. Called for every PTR_TO_BTF_ID, also or-null
    and untrusted ones, and refuses those that may not be dereferenced. Records ``env.fact.pointee``: TRUSTED only if
    the pointers of all paths are trusted.
    """
    reg = env.reg(regno)
    if reg.maybe_null:
        name = env.type_name(reg)
        env.denied(f"R{regno} invalid mem access '{name}'")
    btf = reg.btf or env.kernel.btf
    struct = btf.type(reg.btf_id).name
    where = f"R{regno} is ptr_{struct}"
    if not env.capabilities.ptr_leaks:
        env.refuse(EPERM, f"'struct {struct}' access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN")
    if env.kernel.rules.calls.trusted and not is_gpl(env) and btf is env.kernel.btf:
        env.invalid(f"Cannot access kernel 'struct {struct}' from non-GPL compatible program")
    if reg.off + off < 0:
        env.denied(f"{where} invalid negative access: off={reg.off + off}")
    if reg.var != ZERO:
        env.denied(f"{where} invalid variable offset: off={reg.off + off}, var_off={reg.var.bits}")
    if reg.has(Flag.MEM_USER):
        env.denied(f"{where} access user memory: off={reg.off + off}")
    if reg.has(Flag.MEM_PERCPU):
        env.denied(f"{where} access percpu memory: off={reg.off + off}")
    if write and not (reg.has(Flag.MEM_ALLOC) and not reg.has(Flag.PTR_UNTRUSTED)):
        env.denied("only read is supported")
    if reg.has(Flag.MEM_ALLOC):
        env.unsupported("objects that programs allocate")
    found = _find(env, btf, reg.btf_id, reg.off + off, size)
    if env.fact.pointee is not Pointee.BTF_ID:
        env.fact.pointee = Pointee.TRUSTED if reg.flags & (TRUSTED_MODIFIERS | Flag.MEM_RCU) else Pointee.BTF_ID
    if value_regno >= 0:
        env.set_reg(value_regno, _loaded(env, reg, btf, found))


def is_gpl(env: Env) -> bool:
    """True if the program's licence is compatible with the GPL (``license_is_gpl_compatible``)."""
    licences = ("GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL")
    return env.program.license in licences


def _find(env: Env, btf: Btf, struct_id: int, off: int, size: int) -> StructWalkResult:
    try:
        return find_field(btf, struct_id, off, size, unions_untrusted=env.kernel.rules.calls.trusted)
    except WalkFault as fault:
        env.refuse(fault.errno, fault.message)


def _loaded(env: Env, reg: Reg | None, btf: Btf, found: StructWalkResult) -> Reg:
    """Register value after a load from a field; ``reg`` None: from a map's struct."""
    rules = env.kernel.rules.calls
    if not found.pointer:
        return UNKNOWN_REG
    if not found.struct_id:
        if not rules.untrusted_leaves:
            return UNKNOWN_REG
        return Reg(RegKind.PTR_TO_MEM, Flag.MEM_RDONLY | Flag.PTR_UNTRUSTED)
    flags = found.flags if rules.trusted else found.flags & ~Flag.MEM_RCU
    if reg is not None:
        flags = _trust(env, reg, btf, found, flags)
    number = env.new_id() if flags & Flag.PTR_MAYBE_NULL else 0
    return Reg(RegKind.PTR_TO_BTF_ID, flags, id=number, btf=btf, btf_id=found.struct_id)


def _trust(env: Env, reg: Reg, btf: Btf, found: StructWalkResult, flags: Flag) -> Flag:
    """Flags of a pointer that was loaded through another one."""
    if not env.kernel.rules.calls.trusted:
        return flags | reg.flags & Flag.PTR_UNTRUSTED
    if reg.has(Flag.PTR_UNTRUSTED):
        return Flag.PTR_UNTRUSTED
    if not (is_trusted(reg) or reg.has(Flag.MEM_RCU)):
        return flags & ~(Flag.PTR_TRUSTED | Flag.MEM_RCU)
    if _is_safe(btf, reg, found, "trusted"):
        return flags | Flag.PTR_TRUSTED
    if _is_safe(btf, reg, found, "trusted_or_null"):
        return flags | Flag.PTR_TRUSTED | Flag.PTR_MAYBE_NULL
    if not in_rcu_section(env) or reg.maybe_null:
        return Flag.PTR_UNTRUSTED
    if _is_safe(btf, reg, found, "rcu"):
        return flags | Flag.MEM_RCU
    or_null = _is_safe(btf, reg, found, "rcu_or_null")
    if flags & Flag.MEM_RCU or or_null:
        flags |= Flag.MEM_RCU | Flag.PTR_MAYBE_NULL
        return flags & ~Flag.PTR_UNTRUSTED if or_null else flags
    if flags & (Flag.MEM_PERCPU | Flag.MEM_USER):
        return flags
    return flags & ~(Flag.PTR_TRUSTED | Flag.MEM_RCU)


def _is_safe(btf: Btf, reg: Reg, found: StructWalkResult, how: str) -> bool:
    """``btf_nested_type_is_trusted``: the kernel lists the field in ``struct task_struct__safe_rcu`` or a similar list.
    """
    listed = btf.struct_named(f"{btf.type(reg.btf_id).name}__safe_{how}")
    if not listed:
        return False
    for member in btf.members(listed):
        if member.name == found.field:
            pointer = btf.unmodified(member.type_id)
            return btf.unmodified(pointer.type_id).id == found.struct_id
    return False


def check_map_ptr_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """``check_ptr_to_map_access``: a load from the kernel's struct of a map, CONST_PTR_TO_MAP."""
    spec: MapSpec | None = env.reg(regno).map
    kind = spec.type if spec is not None else MapType.UNSPEC
    name = MAP_STRUCTS.get(kind, "")
    struct_id = env.kernel.btf.struct_named(name) if name else 0
    if not struct_id:
        env.refuse(ENOTSUPP, f"map_ptr access not supported for map type {int(kind)}")
    if not env.capabilities.ptr_leaks:
        env.refuse(EPERM, f"'struct {name}' access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN")
    if off < 0:
        env.denied(f"R{regno} is {name} invalid negative access: off={off}")
    if write:
        env.refuse(EACCES, f"only read from {name} is supported")
    found = _find(env, env.kernel.btf, struct_id, off, size)
    if value_regno >= 0:
        env.set_reg(value_regno, _loaded(env, None, env.kernel.btf, found))


def check_tp_buffer_access(env: Env, regno: int, off: int, size: int) -> None:
    """``check_tp_buffer_access`` of a writable raw tracepoint; the caller marks the loaded register."""
    reg = env.reg(regno)
    if off < 0:
        env.denied(f"R{regno} invalid tracepoint buffer access: off={off}, size={size}")
    if reg.var != ZERO:
        env.denied(f"R{regno} invalid variable buffer offset: off={off}, var_off={reg.var.bits}")
