"""Early refusal of loops that will reach the limit of walked instructions.

A program that loops until a million instructions are walked is refused with E2BIG. Here a few rounds are observed from
time to time: if each does the same, and the operands of its jumps change by the same amount each time, one can compute
if any jump would be decided otherwise before the limit is reached. If none is, the rest of the walk is skipped. The
result can only be a refusal, so that a wrong prediction never accepts a program.
"""

import itertools
from typing import NamedTuple

from trampoline.bpf.isa.insn import EXIT, GOTO, GOTOL, MAY_GOTO, Alu, Cls, Insn, Jmp, X
from trampoline.bpf.verifier.prepass.cfg import Flow
from trampoline.bpf.verifier.prepass.registers import uses_and_defines
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.branches import Taken
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.scalar import S32_MAX, S32_MIN, S64_MAX, S64_MIN, Scalar, known
from trampoline.bpf.verifier.values.tnum import U32, U64, UNKNOWN, Tnum

_FIRST_LOOK = 4096
_ROUNDS = 4
_LONGEST = 20_000
_LIMITS = ((0, U64), (0, U64), (S64_MIN, S64_MAX), (S64_MIN, S64_MAX), (0, U32), (0, U32)) + ((S32_MIN, S32_MAX),) * 2


class _Comparison(NamedTuple):
    op: int
    is32: bool
    left: Scalar
    right: Scalar


class _Event(NamedTuple):
    """One instruction of a round: the parts that must be the same each time, and the operands of a jump."""

    slot: int
    same: tuple[Reg, ...] = ()
    comparison: _Comparison | None = None


class Foresight:
    """Observer of one walk's loops, one after another. ``at``: the instruction count at which to call ``look``."""

    def __init__(self, flow: Flow, limit: int) -> None:
        self.at = _FIRST_LOOK if flow.loops else limit + 1
        self._limit = limit
        self._heads = sorted(flow.loops)
        self._turn = 0
        self._interval = _FIRST_LOOK
        self._rounds: list[list[_Event]] = []
        self._marks: list[int] = []

    def look(self, env: Env, insn: Insn) -> bool:
        """Called before each instruction while a loop is observed; True if the limit will be reached."""
        head = self._heads[self._turn % len(self._heads)]
        if env.slot == head:
            self._rounds.append([])
            self._marks.append(env.processed)
            if len(self._rounds) > _ROUNDS:
                doomed = self._judge(env)
                self._rest(env)
                return doomed
        if self._rounds:
            self._rounds[-1].append(_event(env, insn))
        if env.processed - self.at > _LONGEST:
            self._rest(env)
        else:
            self.at = min(self.at, env.processed)
        return False

    def _rest(self, env: Env) -> None:
        self._turn += 1
        self._rounds, self._marks = [], []
        if self._turn % len(self._heads) == 0:
            self._interval *= 2
            self.at = env.processed + self._interval
        else:
            self.at = env.processed

    def _judge(self, env: Env) -> bool:
        rounds = self._rounds[:_ROUNDS]
        steps = {later - earlier for earlier, later in zip(self._marks, self._marks[1:], strict=False)}
        if len(steps) != 1 or any(len(events) != len(rounds[0]) for events in rounds):
            return False
        left = (self._limit - env.processed) // steps.pop() + 1
        return all(_goes_on(events, left, env.rules.taken) for events in zip(*rounds, strict=True))


def _event(env: Env, insn: Insn) -> _Event:
    regs = env.frame.regs
    cls, op = insn.code & 7, insn.code & 0xF0
    if cls in (Cls.ALU, Cls.ALU64):
        operands = [regs[insn.dst]] if op != Alu.MOV else []
        if insn.code & X and op != Alu.END:
            operands.append(regs[insn.src])
        if op == Alu.MOV or all(reg.is_scalar for reg in operands):
            return _Event(env.slot)
        return _Event(env.slot, tuple(_anonymous(reg) for reg in operands))
    if cls in (Cls.JMP, Cls.JMP32) and op not in (Jmp.CALL, Jmp.EXIT):
        if insn.code in (GOTO, GOTOL, MAY_GOTO):
            return _Event(env.slot)
        is32 = cls == Cls.JMP32
        left = regs[insn.dst]
        right = regs[insn.src] if insn.code & X else None
        if left.is_scalar and (right is None or right.is_scalar):
            operand = right.var if right is not None else known(insn.imm & U32 if is32 else insn.imm)
            return _Event(env.slot, (), _Comparison(op, is32, left.var, operand))
    used, _ = uses_and_defines(insn)
    if cls == Cls.STX and regs[insn.dst].kind is RegKind.PTR_TO_STACK:
        used = 1 << insn.dst
    if insn.code == EXIT and len(env.state.frames) > 1:
        used = 0
    return _Event(env.slot, tuple(_anonymous(regs[n]) for n in range(11) if used >> n & 1))


def _anonymous(reg: Reg) -> Reg:
    return reg._replace(id=0, ref_obj_id=0, map_uid=0)


def _goes_on(events: tuple[_Event, ...], rounds: int, taken: Taken) -> bool:
    """True if the same instruction of all rounds does the same for ``rounds`` more."""
    first = events[0]
    if any(event.slot != first.slot or event.same != first.same for event in events):
        return False
    compared = [event.comparison for event in events if event.comparison is not None]
    if not compared:
        return True
    last = compared[-1]
    left = _extrapolated([item.left for item in compared], rounds)
    right = _extrapolated([item.right for item in compared], rounds)
    if left is None or right is None:
        return False
    if last.op == Jmp.JSET and (left != last.left or right != last.right):
        return False
    if taken(last.op, last.left, last.right, last.is32) != taken(last.op, left, right, last.is32):
        return False
    if last.op not in (Jmp.JEQ, Jmp.JNE):
        return True
    # Two numbers that meet and separate again are equal in between.
    return (last.left.umin < last.right.umin) == (left.umin < right.umin) and (last.left.umin > last.right.umin) == (
        left.umin > right.umin
    )


def _bounds(value: Scalar) -> tuple[int, ...]:
    return (
        value.umin,
        value.umax,
        value.smin,
        value.smax,
        value.u32_min,
        value.u32_max,
        value.s32_min,
        value.s32_max,
    )


def _extrapolated(values: list[Scalar], rounds: int) -> Scalar | None:
    """The number ``rounds`` later, if its bounds change evenly and stay within their width."""
    if all(value == values[0] for value in values):
        return values[0]
    constant = all(value.is_const for value in values)
    if any(value.is_const for value in values) and not constant:
        return None
    bounds = []
    for (low, high), column in zip(_LIMITS, zip(*map(_bounds, values), strict=True), strict=True):
        step = column[1] - column[0]
        if any(later - earlier != step for earlier, later in itertools.pairwise(column)):
            return None
        bound = column[-1] + step * rounds
        if not low <= bound <= high:
            return None
        bounds.append(bound)
    if constant:
        return known(bounds[0])
    umin, umax, smin, smax, u32_min, u32_max, s32_min, s32_max = bounds
    bits: Tnum = UNKNOWN
    return Scalar(bits, umin, umax, smin, smax, u32_min, u32_max, s32_min, s32_max)
