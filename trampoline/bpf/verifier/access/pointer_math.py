"""Arithmetic on pointers (``adjust_ptr_min_max_vals``)."""

from trampoline.bpf.isa.insn import Alu, Insn
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import type_name
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg
from trampoline.bpf.verifier.values import tnum
from trampoline.bpf.verifier.values.bounds import Bounds
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar import S64_MAX, S64_MIN, ZERO, Scalar, known
from trampoline.bpf.verifier.values.tnum import U64, Tnum

MAX_VAR_OFF = 1 << 29
_SIGNS = ("+=", "-=", "*=", "/=", "|=", "&=", "<<=", ">>=", "neg", "%=", "^=", "=", "s>>=", "endian")
_MOVABLE = frozenset(
    {
        RegKind.PTR_TO_CTX,
        RegKind.PTR_TO_MAP_VALUE,
        RegKind.PTR_TO_MAP_KEY,
        RegKind.PTR_TO_STACK,
        RegKind.PTR_TO_PACKET_META,
        RegKind.PTR_TO_PACKET,
        RegKind.PTR_TO_TP_BUFFER,
        RegKind.PTR_TO_BTF_ID,
        RegKind.PTR_TO_MEM,
        RegKind.PTR_TO_BUF,
        RegKind.PTR_TO_FUNC,
        RegKind.PTR_TO_INSN,
        RegKind.CONST_PTR_TO_DYNPTR,
    }
)
_PACKETS = (RegKind.PTR_TO_PACKET, RegKind.PTR_TO_PACKET_META)


def add_offset(reg: Reg, number: int, var: Scalar) -> Reg:
    """A linked number plus a constant, still linked if possible (BPF_ADD_CONST)."""
    off = reg.off + number
    if reg.add_const or not -(1 << 31) <= off < 1 << 31:
        return Reg(RegKind.SCALAR_VALUE, var=var)
    return reg._replace(var=var, off=off, add_const=True)


def pointer_alu(
    env: Env, insn: Insn, op: int, pointer: Reg, operand: Scalar, is32: bool, *, swapped: bool = False
) -> Reg:
    """The result of ``pointer op operand``, or of ``operand op pointer`` if ``swapped``."""
    dst = insn.dst
    fixed = operand.is_const
    contradictory = operand.smin > operand.smax or operand.umin > operand.umax
    if contradictory or (fixed and (operand.smin != operand.smax or operand.umin != operand.umax)):
        return UNKNOWN_REG
    if is32:
        if op == Alu.SUB and env.capabilities.ptr_leaks:
            return UNKNOWN_REG
        env.denied(f"R{dst} 32-bit pointer arithmetic prohibited")
    adds_nothing = fixed and not operand.value and op == Alu.ADD
    if pointer.flags & Flag.PTR_MAYBE_NULL and not (adds_nothing and env.rules.keeps_or_null_off):
        env.denied(f"R{dst} pointer arithmetic on {type_name(pointer)} prohibited, null-check it first")
    if pointer.kind is RegKind.PTR_TO_ARENA:
        return UNKNOWN_REG
    if pointer.kind not in _MOVABLE and not (
        (pointer.kind is RegKind.PTR_TO_FLOW_KEYS and fixed)
        or (pointer.kind is RegKind.CONST_PTR_TO_MAP and adds_nothing)
    ):
        env.denied(f"R{dst} pointer arithmetic on {type_name(pointer)} prohibited")
    _check_sane(env, pointer, operand, 0)
    _check_sane(env, pointer, pointer.var, pointer.off)
    if op == Alu.ADD:
        result = _added(env, pointer, operand)
    elif op == Alu.SUB:
        if swapped:
            env.denied(f"R{dst} tried to subtract pointer from scalar")
        if pointer.kind is RegKind.PTR_TO_STACK:
            env.denied(f"R{dst} subtraction from stack pointer prohibited")
        result = _subtracted(env, pointer, operand)
    elif op in (Alu.AND, Alu.OR, Alu.XOR):
        env.denied(f"R{dst} bitwise operator {_SIGNS[op >> 4]} on pointer prohibited")
    else:
        env.denied(f"R{dst} pointer arithmetic with {_SIGNS[op >> 4]} operator prohibited")
    _check_sane(env, pointer, result.var, result.off)
    if not env.capabilities.perfmon:
        _check_unprivileged(env, dst, result, operand)
    return result


def _check_unprivileged(env: Env, dst: int, result: Reg, operand: Scalar) -> None:
    """Without CAP_PERFMON a pointer must not leave its memory even under speculation (``sanitize_ptr_alu``,
    ``sanitize_check_bounds``).
    """
    if not operand.is_const and (operand.smin < 0) != (operand.smax < 0):
        env.denied(
            f"R{dst} has unknown scalar with mixed signed bounds, pointer arithmetic with it prohibited for !root"
        )
    var, off = result.var, result.off
    if result.kind is RegKind.PTR_TO_STACK:
        if not var.is_const:
            env.denied(f"R{dst} variable stack access prohibited for !root, var_off={var.bits} off={off}")
        if not -512 <= off + var.signed < 0:
            env.denied(f"R{dst} stack pointer arithmetic goes out of range, prohibited for !root")
    elif result.map is not None and result.kind is RegKind.PTR_TO_MAP_VALUE:
        size = result.map.value_size
        inside = off + var.smin >= 0 and off + var.umax < size
        if not inside:
            env.denied(f"R{dst} pointer arithmetic of map value goes out of range, prohibited for !root")


def _check_sane(env: Env, pointer: Reg, var: Scalar, off: int) -> None:
    """``check_reg_sane_offset``: keep offsets far from overflow."""
    name = type_name(pointer)
    if var.is_const and not -MAX_VAR_OFF < var.signed < MAX_VAR_OFF:
        env.invalid(f"math between {name} pointer and {var.signed} is not allowed")
    if not -MAX_VAR_OFF < off < MAX_VAR_OFF:
        env.invalid(f"{name} pointer offset {off} is not allowed")
    if var.smin == S64_MIN:
        env.invalid(f"math between {name} pointer and register with unbounded min value is not allowed")
    if not -MAX_VAR_OFF < var.smin < MAX_VAR_OFF:
        env.invalid(f"value {var.smin} makes {name} pointer be out of bounds")


def _added(env: Env, pointer: Reg, operand: Scalar) -> Reg:
    if operand.is_const:
        off = pointer.off + operand.signed
        if -(1 << 31) <= off < 1 << 31:
            return pointer._replace(off=off)
    pointer = _folded(env, pointer)
    a = pointer.var
    if a == ZERO and not operand.is_const:
        # Pointers have no 32-bit bounds: nothing is lost.
        out = Bounds(operand)
    else:
        out = Bounds()
        out.bits = tnum.add(a.bits, operand.bits)
        low, high = a.smin + operand.smin, a.smax + operand.smax
        out.smin, out.smax = (low, high) if low >= S64_MIN and high <= S64_MAX else (S64_MIN, S64_MAX)
        high = a.umax + operand.umax
        out.umin, out.umax = (a.umin + operand.umin, high) if high <= U64 else (0, U64)
    out.forget32()
    return _moved(env, pointer, env.rules.arithmetic.sync(out))


def _subtracted(env: Env, pointer: Reg, operand: Scalar) -> Reg:
    if operand.is_const:
        off = pointer.off - operand.signed
        if -(1 << 31) <= off < 1 << 31:
            return pointer._replace(off=off)
    pointer = _folded(env, pointer)
    a = pointer.var
    out = Bounds()
    out.bits = tnum.sub(a.bits, operand.bits)
    low, high = a.smin - operand.smax, a.smax - operand.smin
    out.smin, out.smax = (low, high) if low >= S64_MIN and high <= S64_MAX else (S64_MIN, S64_MAX)
    out.umin, out.umax = (a.umin - operand.umax, a.umax - operand.umin) if a.umin >= operand.umax else (0, U64)
    return _moved(env, pointer, env.rules.arithmetic.sync(out))


def _folded(env: Env, pointer: Reg) -> Reg:
    """The same with its constant offset added to its bounds, for releases without a separate offset."""
    if not env.rules.folds_offsets or not pointer.off:
        return pointer
    var = pointer.var
    if var == ZERO:
        return pointer._replace(var=known(pointer.off), off=0)
    out = Bounds()
    out.bits = tnum.add(var.bits, Tnum(pointer.off & U64, 0))
    low, high = var.smin + pointer.off, var.smax + pointer.off
    out.smin, out.smax = (low, high) if low >= S64_MIN and high <= S64_MAX else (S64_MIN, S64_MAX)
    if var.umin + pointer.off >= 0 and var.umax + pointer.off <= U64:
        out.umin, out.umax = var.umin + pointer.off, var.umax + pointer.off
    return pointer._replace(var=env.rules.arithmetic.sync(out), off=0)


def _moved(env: Env, pointer: Reg, var: Scalar) -> Reg:
    if pointer.kind in _PACKETS:
        return pointer._replace(var=var, id=env.new_id(), range=0)
    return pointer._replace(var=var)
