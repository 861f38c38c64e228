"""ALU instructions in the walk (``check_alu_op``)."""

from trampoline.bpf.isa.insn import ADDR_SPACE_CAST, Alu, Cls, Insn, X
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.access.pointer_math import add_offset, pointer_alu
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg, scalar_reg
from trampoline.bpf.verifier.values.arith import binary, divided, low32, negated, sign_extended, swapped
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.scalar import Scalar, known
from trampoline.bpf.verifier.values.tnum import U32

ALU_SIGNS = ("+=", "-=", "*=", "/=", "|=", "&=", "<<=", ">>=", "neg", "%=", "^=", "=", "s>>=", "endian")


def step(env: Env, insn: Insn) -> None:
    """Walk one instruction; its fields are already checked."""
    op = insn.code & 0xF0
    if op == Alu.MOV:
        _mov(env, insn)
    elif op in (Alu.NEG, Alu.END):
        _unary(env, insn, op)
    else:
        _binary(env, insn, op)


def _unary(env: Env, insn: Insn, op: int) -> None:
    reg = env.read(insn.dst)
    if not reg.is_scalar and not env.capabilities.ptr_leaks:
        env.denied(f"R{insn.dst} pointer arithmetic prohibited")
    env.check_writable(insn.dst)
    if not reg.is_scalar:
        env.frame.regs[insn.dst] = UNKNOWN_REG
        return
    how, is32 = env.rules.arithmetic, insn.code & 7 == Cls.ALU
    if op == Alu.NEG:
        result = negated(reg.var, is32, how)
    else:  # a swap to little endian does nothing on this machine
        result = swapped(reg.var, insn.imm, how, swap=bool(insn.code & X) or not is32)
    env.frame.regs[insn.dst] = scalar_reg(result)


def _mov(env: Env, insn: Insn) -> None:
    is32 = insn.code & 7 == Cls.ALU
    if not insn.code & X:
        env.check_writable(insn.dst)
        env.frame.regs[insn.dst] = scalar_reg(known(insn.imm & U32 if is32 else insn.imm))
        return
    source = env.read(insn.src)
    env.check_writable(insn.dst)
    if insn.off == ADDR_SPACE_CAST and env.rules.percpu_and_casts:
        if any(spec.type == MapType.ARENA for spec in env.maps):
            env.unsupported("arenas")
        env.invalid("addr_space_cast insn can only be used in a program that has an associated arena")
    if not is32 and not insn.off:
        env.frame.regs[insn.dst] = _linked(env, insn.src, source)
        return
    if not source.is_scalar:
        if not env.capabilities.ptr_leaks:
            what = "sign-extension part" if insn.off and not is32 else "partial copy"
            env.denied(f"R{insn.src} {what} of pointer")
        env.frame.regs[insn.dst] = UNKNOWN_REG if not is32 else scalar_reg(low32(UNKNOWN_REG.var, env.rules.arithmetic))
        return
    how = env.rules.arithmetic
    if insn.off:
        bits = insn.off
        unchanged = source.var.umax < 1 << (bits - 1)
        if unchanged:
            env.frame.regs[insn.dst] = _linked(env, insn.src, source)
        else:
            env.frame.regs[insn.dst] = scalar_reg(sign_extended(source.var, bits // 8, is32, how))
    elif source.var.umax <= U32 and env.rules.links_low_half:
        env.frame.regs[insn.dst] = _linked(env, insn.src, source)._replace(var=low32(source.var, how))
    else:
        env.frame.regs[insn.dst] = scalar_reg(low32(source.var, how))


def _linked(env: Env, src: int, source: Reg) -> Reg:
    """A copy, linked with its source if that is an unknown number (``assign_scalar_id_before_mov``)."""
    if source.kind is not RegKind.SCALAR_VALUE or source.var.is_const:
        return source
    if not source.id or source.add_const:
        source = source._replace(id=env.new_id(), off=0, add_const=False)
        env.frame.regs[src] = source
    return source


def _binary(env: Env, insn: Insn, op: int) -> None:
    regs = env.frame.regs
    source = env.read(insn.src) if insn.code & X else None
    reg = env.read(insn.dst)
    env.check_writable(insn.dst)
    is32 = insn.code & 7 == Cls.ALU
    if source is None:
        operand = known(insn.imm)
        if not reg.is_scalar:
            regs[insn.dst] = pointer_alu(env, insn, op, reg, operand, is32)
            return
    elif not source.is_scalar:
        if reg.is_scalar:
            regs[insn.dst] = pointer_alu(env, insn, op, source, reg.var, is32, swapped=True)
            return
        if op == Alu.SUB and env.capabilities.ptr_leaks:
            regs[insn.dst] = UNKNOWN_REG
            return
        env.denied(f"R{insn.dst} pointer {ALU_SIGNS[op >> 4]} pointer prohibited")
    else:
        operand = source.var
        if not reg.is_scalar:
            regs[insn.dst] = pointer_alu(env, insn, op, reg, operand, is32)
            return
    result = _scalar(env, insn, op, reg.var, operand, is32)
    if reg.id and env.rules.linked_offsets and op == Alu.ADD and not is32 and operand.is_const:
        regs[insn.dst] = add_offset(reg, operand.signed, result)
    else:
        regs[insn.dst] = scalar_reg(result)


def _scalar(env: Env, insn: Insn, op: int, a: Scalar, b: Scalar, is32: bool) -> Scalar:
    how = env.rules.arithmetic
    if op in (Alu.DIV, Alu.MOD):
        return divided(op, a, b, is32, bool(insn.off), how)
    return binary(op, a, b, is32, how)
