"""Conditional jumps in the walk (``check_cond_jmp_op``)."""

from trampoline.bpf.isa.insn import Cls, Insn, Jmp, X
from trampoline.bpf.verifier.access.nullness import mark, not_null, surely_not_null
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, VerifierState
from trampoline.bpf.verifier.values.arith import binary
from trampoline.bpf.verifier.values.branches import FLIPPED, NEGATED
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar import Scalar, known
from trampoline.bpf.verifier.values.tnum import U32

_ADD = 0
_PACKETS = (RegKind.PTR_TO_PACKET, RegKind.PTR_TO_PACKET_META, RegKind.PTR_TO_PACKET_END)


def step(env: Env, insn: Insn) -> None:
    """Walk one jump: follow it if decided, otherwise split the path; the taken side is walked later."""
    op = insn.code & 0xF0
    is32 = insn.code & 7 == Cls.JMP32
    regs = env.frame.regs
    right: Reg | None = None
    if insn.code & X:
        right = env.read(insn.src)
        left = env.read(insn.dst)
        if not env.capabilities.ptr_leaks and not right.is_scalar and left.kind not in _PACKETS:
            env.denied(f"R{insn.src} pointer comparison prohibited")
    else:
        left = env.read(insn.dst)
    if left.kind is RegKind.SCALAR_VALUE and (right is None or right.kind is RegKind.SCALAR_VALUE):
        operand = known(insn.imm & U32 if is32 else insn.imm) if right is None else right.var
        taken = env.rules.taken(op, left.var, operand, is32)
        if taken is None and right is not None and insn.dst == insn.src and env.rules.compares_same:
            taken = _same(op)
    else:
        taken = _pointer_taken(env, op, left, right, insn.imm)
        operand = None
    target = env.slot + 1 + insn.off
    if taken is not None:
        if taken:
            env.next_slot = target
        return
    other = env.push_branch(target)
    if operand is not None:
        _refine(env, insn, op, left, right, operand, is32, other)
        return
    if right is not None and not is32 and left.kind in _PACKETS and right.kind in _PACKETS:
        env.unsupported("comparisons of packet pointers")
    if right is not None and not is32 and not left.is_scalar and not right.is_scalar:
        _both_pointers(env, insn, op, left, right, other)
    elif right is None and not is32 and not insn.imm and op in (Jmp.JEQ, Jmp.JNE) and left.maybe_null:
        mark(env, env.state, insn.dst, op == Jmp.JNE)
        mark(env, other, insn.dst, op == Jmp.JEQ)
    elif not env.capabilities.ptr_leaks and not regs[insn.dst].is_scalar:
        env.denied(f"R{insn.dst} pointer comparison prohibited")


def _same(op: int) -> bool | None:
    """Decide the comparison of a register with itself."""
    if op in (Jmp.JEQ, Jmp.JGE, Jmp.JLE, Jmp.JSGE, Jmp.JSLE):
        return True
    return None if op == Jmp.JSET else False


def _pointer_taken(env: Env, op: int, left: Reg, right: Reg | None, imm: int) -> bool | None:
    """Decide the comparison of a non-NULL pointer with 0; None for others."""
    if left.is_scalar and right is not None:
        if not env.rules.flips_known_left:
            return None
        left, right, op = right, left, FLIPPED[op]
    if right is not None:
        if not (right.is_scalar and right.var.is_const) or right.var.value:
            return None
    elif imm:
        return None
    if not surely_not_null(env, left):
        return None
    return {Jmp.JEQ: False, Jmp.JNE: True}.get(Jmp(op))


def _refine(
    env: Env,
    insn: Insn,
    op: int,
    left: Reg,
    right: Reg | None,
    operand: Scalar,
    is32: bool,
    other: VerifierState,
) -> None:
    how = env.rules
    sync = how.arithmetic.sync
    both = right is not None and insn.dst == insn.src
    sides = ((other, op), (env.state, NEGATED[op]))
    for state, holds in sides:
        a, b = how.refine(holds, left.var, operand, is32, sync)
        regs = state.frame.regs
        if right is not None and not both:
            _learn(env, state, insn.src, right, b)
        if not both:
            _learn(env, state, insn.dst, left, a)
        elif regs[insn.dst].var != a:
            regs[insn.dst] = left._replace(var=a)


def _learn(env: Env, state: VerifierState, regno: int, reg: Reg, var: Scalar) -> None:
    """Set a refined number, and refine those linked with it (``sync_linked_regs``)."""
    if var == reg.var:
        return
    learnt = reg._replace(var=var)
    state.frame.regs[regno] = learnt
    if not reg.id:
        return
    how = env.rules.arithmetic

    def linked(candidate: Reg) -> Reg:
        if candidate.id != reg.id or candidate.kind is not RegKind.SCALAR_VALUE:
            return candidate
        delta = candidate.off - reg.off
        if not delta:
            return candidate._replace(var=var)
        return candidate._replace(var=binary(_ADD, var, known(delta), False, how))

    state.each_reg(linked)


def _both_pointers(env: Env, insn: Insn, op: int, left: Reg, right: Reg, other: VerifierState) -> None:
    """An equal pair of a pointer that may be NULL and one that is not: neither is NULL (JEQ taken, JNE not taken)."""
    if left.maybe_null == right.maybe_null:
        return
    checked, certain, regno = (left, right, insn.dst) if left.maybe_null else (right, left, insn.src)
    if certain.kind is RegKind.PTR_TO_BTF_ID and not certain.flags & Flag.PTR_TRUSTED:
        return
    if op == Jmp.JEQ:
        other.frame.regs[regno] = not_null(env, checked)
    elif op == Jmp.JNE:
        env.frame.regs[regno] = not_null(env, checked)
