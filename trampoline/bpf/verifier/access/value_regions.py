"""Memory of known size: map values and keys, buffers, and the protected fields of map values."""

from errno import EACCES

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import type_name
from trampoline.bpf.verifier.state.state import Reg, known_reg
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.scalar import S64_MIN

MAX_VAR_OFF = 1 << 29
RDONLY_PROG = 1 << 7  # BPF_F_RDONLY_PROG
WRONLY_PROG = 1 << 8  # BPF_F_WRONLY_PROG

SPECIAL_FIELDS = {
    "bpf_spin_lock": 4,
    "bpf_res_spin_lock": 4,
    "bpf_timer": 16,
    "bpf_wq": 16,
    "bpf_task_work": 8,
    "bpf_list_head": 16,
    "bpf_list_node": 24,
    "bpf_rb_root": 16,
    "bpf_rb_node": 32,
    "bpf_refcount": 4,
}
"""Structs in a map value that instructions must not access, and their size in bytes."""


def special_fields(btf: Btf | None, spec: MapSpec) -> tuple[tuple[int, int, str], ...]:
    """(offset, size, name) of the ``SPECIAL_FIELDS`` and ``kptr`` fields in a map's value (``btf_record``)."""
    if btf is None or not spec.value_type:
        return ()
    try:
        record = btf.unmodified(spec.value_type)
        if record.kind is not BtfKind.STRUCT:
            return ()
        found = []
        for member in btf.members(record.id):
            kind = btf.unmodified(member.type_id)
            name = kind.name
            if kind.kind is BtfKind.STRUCT and name in SPECIAL_FIELDS:
                found.append((member.bit_offset // 8, SPECIAL_FIELDS[name], name))
            elif kind.kind is BtfKind.PTR and any(tag.startswith("kptr") for tag in btf.type_tags(member.type_id)):
                found.append((member.bit_offset // 8, 8, "kptr"))
        return tuple(found)
    except BtfError:
        return ()


def check_map_type(env: Env, regno: int, off: int, size: int, *, write: bool) -> None:
    """``check_map_access_type``: check that programs may read, or write, the map."""
    spec = env.frame.regs[regno].map
    assert spec is not None
    forbidden = RDONLY_PROG if write else WRONLY_PROG
    if spec.flags & forbidden or (write and spec.readonly):
        what = "write into" if write else "read from"
        env.denied(f"{what} map forbidden, value_size={spec.value_size} off={off} size={size}")


def check_map_access(env: Env, regno: int, off: int, size: int, *, zero_ok: bool = False, direct: bool = False) -> None:
    """``check_map_access``: ``size`` bytes at a PTR_TO_MAP_VALUE are within the value.

    ``off`` includes the register's constant offset. ``direct``: access by an instruction, which has different rules for
    kptrs.
    """
    reg = env.frame.regs[regno]
    spec = reg.map
    assert spec is not None
    check_mem_region(env, regno, off, size, spec.value_size, zero_ok=zero_ok)
    for start, length, name in special_fields(env.program.btf, spec):
        if off + reg.var.smin < start + length and start < off + reg.var.umax + size:
            if name == "kptr":
                if direct:
                    env.unsupported("kptrs in map values")
                env.denied("kptr cannot be accessed indirectly by helper")
            env.denied(f"{name} cannot be accessed directly by load/store")


def check_mem_region(env: Env, regno: int, off: int, size: int, mem_size: int, *, zero_ok: bool = False) -> None:
    """``check_mem_region_access``: ``size`` bytes at a register are within a region of ``mem_size`` bytes.

    ``off`` includes the register's constant offset.
    """
    reg = env.frame.regs[regno]
    var = reg.var
    fits32 = -(1 << 31) <= off + var.smin < 1 << 31
    if var.smin < 0 and (var.smin == S64_MIN or not fits32 or var.smin + off < 0):
        env.denied(f"R{regno} min value is negative, either use unsigned index or do a if (index >=0) check.")
    for low, which in ((var.smin + off, "min"), (var.umax + off, "max")):
        if which == "max" and var.umax >= MAX_VAR_OFF:
            env.denied(f"R{regno} unbounded memory access, make sure to bounds check any such access")
        if low < 0 or low + size > mem_size or (not size and not zero_ok):
            env.say(_outside(reg, mem_size, low, size))
            env.denied(f"R{regno} {which} value is outside of the allowed memory range")


def _outside(reg: Reg, mem_size: int, off: int, size: int) -> str:
    if reg.kind is RegKind.PTR_TO_MAP_VALUE:
        return f"invalid access to map value, value_size={mem_size} off={off} size={size}"
    if reg.kind is RegKind.PTR_TO_MAP_KEY:
        return f"invalid access to map key, key_size={mem_size} off={off} size={size}"
    return f"invalid access to memory, mem_size={mem_size} off={off} size={size}"


def check_buffer(env: Env, regno: int, off: int, size: int) -> None:
    """``check_buffer_access``: the kernel checks the end when the program is attached."""
    reg = env.frame.regs[regno]
    if off + reg.off < 0:
        env.refuse(EACCES, f"R{regno} invalid {type_name(reg)} buffer access: off={off + reg.off}, size={size}")
    if not reg.var.is_const or reg.var.value:
        env.refuse(EACCES, f"R{regno} invalid variable buffer offset: off={off + reg.off}, var_off={reg.var.bits}")


def read_constant_map(reg: Reg, off: int, size: int) -> Reg | None:
    """Result of a load from a frozen read-only array at a known offset (``bpf_map_direct_read``); None for others."""
    spec = reg.map
    if spec is None or not spec.readonly or not reg.var.is_const or spec.type != MapType.ARRAY:
        return None
    if spec.max_entries != 1:
        return None
    at = reg.off + off + reg.var.signed
    data = spec.initial[at : at + size].ljust(size, b"\0")
    return known_reg(int.from_bytes(data, "little"))
