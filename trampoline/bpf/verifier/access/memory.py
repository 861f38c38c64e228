"""Memory access through each kind of pointer, from instructions and from calls."""

from trampoline.bpf.isa.insn import Mode
from trampoline.bpf.verifier.access.context import check_ctx_access
from trampoline.bpf.verifier.access.pointers import check_btf_access, check_map_ptr_access, check_tp_buffer_access
from trampoline.bpf.verifier.access.stack import check_initialised, check_within, frame_of
from trampoline.bpf.verifier.access.stack import read as read_stack
from trampoline.bpf.verifier.access.stack import write as write_stack
from trampoline.bpf.verifier.access.value_regions import (
    check_buffer,
    check_map_access,
    check_map_type,
    check_mem_region,
    read_constant_map,
)
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import type_name
from trampoline.bpf.verifier.state.result import Pointee
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg
from trampoline.bpf.verifier.values.arith import sign_extended
from trampoline.bpf.verifier.values.bounds import truncated
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.tnum import Tnum, add, is_aligned

__all__ = [
    "check_helper_mem_access",
    "check_map_access",
    "check_mem_access",
    "check_mem_region",
    "check_mem_size_reg",
    "check_ptr_off_reg",
    "check_stack_range",
    "is_sign_extending",
    "mark_written",
]

MAX_VAR_SIZ = 1 << 29
_UNMODELLED = frozenset(
    {
        RegKind.PTR_TO_PACKET,
        RegKind.PTR_TO_PACKET_META,
        RegKind.PTR_TO_PACKET_END,
        RegKind.PTR_TO_FLOW_KEYS,
        RegKind.PTR_TO_SOCKET,
        RegKind.PTR_TO_SOCK_COMMON,
        RegKind.PTR_TO_TCP_SOCK,
        RegKind.PTR_TO_XDP_SOCK,
        RegKind.PTR_TO_ARENA,
        RegKind.PTR_TO_INSN,
    }
)


def check_alignment(env: Env, reg: Reg, off: int, size: int, *, strict: bool = False) -> None:
    """``check_ptr_alignment``: always for the stack, for other memory if the program or the instruction requires it."""
    on_stack = reg.kind is RegKind.PTR_TO_STACK
    if not (on_stack or strict or env.strict_alignment) or size == 1:
        return
    if not is_aligned(add(reg.var.bits, Tnum(reg.off + off & (1 << 64) - 1, 0)), size):
        place = f"{reg.off}+{off}" if reg.var.is_const else f"{reg.var.bits}+{reg.off}+{off}"
        env.denied(f"misaligned {'stack ' if on_stack else ''}access off {place} size {size}")


def check_mem_access(
    env: Env,
    regno: int,
    off: int,
    size: int,
    write: bool,
    value_regno: int,
    *,
    strict: bool = False,
    sign_extend: bool = False,
    constant: int | None = None,
) -> None:
    """``check_mem_access``: ``size`` bytes at register ``regno`` + ``off``, for the instruction at ``env.slot``.

    Sets ``value_regno`` of a load (if >= 0), or the stack of a store; for a store with ``value_regno`` -1 the value is
    ``constant``, or unknown if that is None. Refuses with the kernel's errno.
    """
    frame = env.frame
    reg = frame.regs[regno]
    kind = reg.kind
    check_alignment(env, reg, off, size, strict=strict)
    if kind is RegKind.PTR_TO_STACK:
        if write:
            value = frame.regs[value_regno] if value_regno >= 0 else None
            write_stack(env, regno, reg.off + off, size, value, constant=constant)
        else:
            read_stack(env, regno, reg.off + off, size, value_regno)
    elif kind is RegKind.PTR_TO_MAP_VALUE and not reg.maybe_null:
        _map_value(env, regno, reg, off, size, write, value_regno)
    elif kind is RegKind.PTR_TO_CTX:
        _no_leak(env, write, value_regno, "ctx")
        check_ptr_off_reg(env, regno, fixed_off_ok=env.rules.ctx_fixed_off)
        check_ctx_access(env, regno, reg.off + off, size, write, value_regno)
        env.fact.pointee = Pointee.CTX
    elif kind is RegKind.PTR_TO_BTF_ID and not reg.maybe_null:
        check_btf_access(env, regno, off, size, write, value_regno)
    elif kind is RegKind.PTR_TO_MEM and not reg.maybe_null:
        _memory(env, regno, reg, off, size, write, value_regno)
    elif kind is RegKind.PTR_TO_BUF and not reg.maybe_null:
        _buffer(env, regno, reg, off, size, write, value_regno)
    elif kind is RegKind.PTR_TO_MAP_KEY:
        if write:
            env.denied(f"write to change key R{regno} not allowed")
        assert reg.map is not None
        check_mem_region(env, regno, reg.off + off, size, reg.map.key_size)
        _loaded(env, value_regno)
    elif kind is RegKind.PTR_TO_TP_BUFFER:
        check_tp_buffer_access(env, regno, reg.off + off, size)
        if not write:
            _loaded(env, value_regno)
    elif kind is RegKind.CONST_PTR_TO_MAP:
        env.fact.pointee = Pointee.BTF_ID
        check_map_ptr_access(env, regno, off, size, write, value_regno)
    elif kind in _UNMODELLED:
        env.unsupported(f"memory access through {type_name(reg)}")
    else:
        env.denied(f"R{regno} invalid mem access '{type_name(reg)}'")
    if not write and value_regno >= 0 and size < 8:
        _narrow(env, value_regno, size, sign_extend)


def _narrow(env: Env, value_regno: int, size: int, sign_extend: bool) -> None:
    loaded = env.frame.regs[value_regno]
    if loaded.kind is not RegKind.SCALAR_VALUE:
        return
    if sign_extend:
        var = sign_extended(loaded.var, size, False, env.rules.arithmetic)
    else:
        var = truncated(loaded.var, size, env.rules.arithmetic.sync)
    if var != loaded.var:
        env.frame.regs[value_regno] = loaded._replace(var=var)


def _loaded(env: Env, value_regno: int) -> None:
    if value_regno >= 0:
        env.frame.regs[value_regno] = UNKNOWN_REG


def _no_leak(env: Env, write: bool, value_regno: int, where: str) -> None:
    if write and value_regno >= 0 and not env.capabilities.ptr_leaks and not env.frame.regs[value_regno].is_scalar:
        env.denied(f"R{value_regno} leaks addr into {where}")


def _map_value(env: Env, regno: int, reg: Reg, off: int, size: int, write: bool, value_regno: int) -> None:
    _no_leak(env, write, value_regno, "map")
    assert reg.map is not None
    check_map_type(env, regno, reg.off + off, size, write=write)
    check_map_access(env, regno, reg.off + off, size, direct=True)
    if not write and value_regno >= 0:
        env.frame.regs[value_regno] = read_constant_map(reg, off, size) or UNKNOWN_REG


def _memory(env: Env, regno: int, reg: Reg, off: int, size: int, write: bool, value_regno: int) -> None:
    if write and reg.flags & Flag.MEM_RDONLY:
        env.denied(f"R{regno} cannot write into {type_name(reg)}")
    _no_leak(env, write, value_regno, "mem")
    if not reg.flags & Flag.PTR_UNTRUSTED:
        check_mem_region(env, regno, reg.off + off, size, reg.mem_size)
    else:
        env.fact.pointee = Pointee.BTF_ID
    if not write:
        _loaded(env, value_regno)


def _buffer(env: Env, regno: int, reg: Reg, off: int, size: int, write: bool, value_regno: int) -> None:
    if write and reg.flags & Flag.MEM_RDONLY:
        env.denied(f"R{regno} cannot write into {type_name(reg)}")
    check_buffer(env, regno, off, size)
    if not write:
        _loaded(env, value_regno)


def check_ptr_off_reg(env: Env, regno: int, *, fixed_off_ok: bool = False) -> None:
    """``__check_ptr_off_reg``: the register's offset is constant, and 0 unless ``fixed_off_ok``."""
    reg = env.frame.regs[regno]
    off = reg.off + (reg.var.signed if reg.var.is_const else 0)
    if reg.var.is_const and off < 0:
        env.denied(f"negative offset {type_name(reg)} ptr R{regno} off={off} disallowed")
    if not fixed_off_ok and off:
        env.denied(f"dereference of modified {type_name(reg)} ptr R{regno} off={off} disallowed")
    if not reg.var.is_const:
        env.denied(f"variable {type_name(reg)} access var_off={reg.var.bits} disallowed")


# Calls


def check_helper_mem_access(
    env: Env, regno: int, size: int, *, write: bool, zero_ok: bool = False, raw: bool = False
) -> int:
    """``check_helper_mem_access``: a call reads or writes ``size`` bytes at register ``regno``.

    ``raw``: the callee only writes, so the stack need not be initialised (``meta->raw_mode``). Returns the number of
    stack bytes that the caller must pass to ``mark_written`` after all arguments are checked: ``size``, or 0.
    """
    reg = env.frame.regs[regno]
    kind = reg.kind
    if kind is RegKind.PTR_TO_STACK:
        return check_stack_range(env, regno, reg.off, size, write=write, raw=raw, zero_ok=zero_ok)
    if kind is RegKind.PTR_TO_MAP_VALUE and not reg.maybe_null:
        check_map_type(env, regno, reg.off, size, write=write or raw)
        check_map_access(env, regno, reg.off, size, zero_ok=zero_ok)
    elif kind is RegKind.PTR_TO_MAP_KEY:
        if write or raw:
            env.denied(f"R{regno} cannot write into {type_name(reg)}")
        assert reg.map is not None
        check_mem_region(env, regno, reg.off, size, reg.map.key_size)
    elif kind is RegKind.PTR_TO_MEM and not reg.maybe_null:
        if (write or raw) and reg.flags & Flag.MEM_RDONLY:
            env.denied(f"R{regno} cannot write into {type_name(reg)}")
        check_mem_region(env, regno, reg.off, size, reg.mem_size, zero_ok=zero_ok)
    elif kind is RegKind.PTR_TO_BUF and not reg.maybe_null:
        if (write or raw) and reg.flags & Flag.MEM_RDONLY:
            env.denied(f"R{regno} cannot write into {type_name(reg)}")
        check_buffer(env, regno, 0, size)
    elif kind is RegKind.PTR_TO_BTF_ID and not reg.maybe_null:
        check_btf_access(env, regno, 0, size, False, -1)
    elif kind in _UNMODELLED:
        env.unsupported(f"memory access through {type_name(reg)}")
    elif not (zero_ok and not size and reg.is_null):
        env.denied(f"R{regno} type={type_name(reg)} expected=fp")
    return 0


def check_mem_size_reg(
    env: Env, regno: int, size_regno: int, *, write: bool, zero_ok: bool = False, raw: bool = False
) -> int:
    """``check_mem_size_reg``: as ``check_helper_mem_access``, with the size in a register; same result."""
    var = env.frame.regs[size_regno].var
    raw = raw and var.is_const
    if var.smin < 0:
        env.denied(f"R{size_regno} min value is negative, either use unsigned or 'var &= const'")
    if not var.umin and not zero_ok:
        if env.rules.names_zero_size:
            env.denied(f"R{size_regno} invalid zero-sized read: u64=[{var.umin},{var.umax}]")
        check_helper_mem_access(env, regno, 0, write=write, zero_ok=zero_ok, raw=raw)
    elif not var.umin and not env.rules.names_zero_size:
        check_helper_mem_access(env, regno, 0, write=write, zero_ok=zero_ok, raw=raw)
    if var.umax >= MAX_VAR_SIZ:
        env.denied(f"R{size_regno} unbounded memory access, use 'var &= const' or 'if (var < const)'")
    return check_helper_mem_access(env, regno, var.umax, write=write, zero_ok=zero_ok, raw=raw)


def check_stack_range(
    env: Env, regno: int, off: int, size: int, *, write: bool, raw: bool = False, zero_ok: bool = False
) -> int:
    """``check_stack_range_initialized``: a call uses ``size`` bytes of stack at register ``regno``.

    ``off`` includes the register's offset. Returns the same as ``check_helper_mem_access``.
    """
    reg = env.frame.regs[regno]
    if not size and not zero_ok:
        env.denied("invalid zero-sized read")
    low, high = check_within(env, regno, off, size, write=True, what=" indirect access to")
    if not reg.var.is_const:
        if not env.capabilities.perfmon:
            env.denied(f"R{regno} variable offset stack access prohibited for !root, var_off={reg.var.bits}")
        raw = False
    if raw:
        return size
    check_initialised(
        env, regno, frame_of(env, reg), low, high + size, off, size, clobber=write or env.rules.clobbers_read
    )
    return 0


def mark_written(env: Env, regno: int, size: int) -> None:
    """Mark ``size`` bytes of stack at register ``regno`` as written by a call."""
    for at in range(size):
        check_mem_access(env, regno, at, 1, True, -1)


def is_sign_extending(code: int) -> bool:
    """True if a load sign-extends."""
    return code & 0xE0 == Mode.MEMSX
