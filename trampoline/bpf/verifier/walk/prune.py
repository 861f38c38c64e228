"""Comparison of a path with those walked before (``is_state_visited``, ``states_equal``).

Numbers are compared by their ranges as if all of them mattered (the kernel ignores those without influence on a
decision). Registers that are dead by static analysis are ignored.
"""

from trampoline.bpf.verifier.prepass.cfg import Flow
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import describe_frame
from trampoline.bpf.verifier.state.state import NOT_INIT, FuncFrame, Reg, StackSlot, VerifierState
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind
from trampoline.bpf.verifier.values.scalar import Scalar
from trampoline.bpf.verifier.values.tnum import contains

_ALL = 0b11111111111


class _Ids:
    """Mapping from ids of the old state to ids of the new one."""

    def __init__(self) -> None:
        self.new_of: dict[int, int] = {}

    def match(self, old: int, new: int) -> bool:
        """True if both can denote the same, given the ids matched so far."""
        if not old or not new:
            return not old and not new
        known = self.new_of.setdefault(old, new)
        return known == new and sum(value == new for value in self.new_of.values()) == 1

    def match_number(self, old: int, new: int) -> bool:
        """The same for linked numbers: an old number without a link matches a linked one."""
        return not old or self.match(old, new)


class Checkpoints:
    """States of one verification by slot, and the rule for keeping one."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.at: dict[int, list[_Checkpoint]] = {}
        self.jumps = 0
        self.kept_at_jumps = 0
        self.kept_at_insns = 0

    def visit(self, env: Env) -> bool:
        """True if the behaviour of the current path from ``env.slot`` on is already verified. If not, it may become a
        checkpoint.
        """
        state, slot = env.state, env.slot
        force = slot in env.callback_slots or slot in env.force_checkpoints
        keep = force or (self.jumps - self.kept_at_jumps >= 2 and env.processed - self.kept_at_insns >= 8)
        if env.rules.live_registers:
            regs, dead = state.frame.regs, ~self.flow.live[slot]
            for n in range(10):
                if dead >> n & 1:
                    regs[n] = NOT_INIT
        candidates = self.at.setdefault(slot, [])
        evicted = []
        for candidate in candidates:
            old = candidate.state
            if len(old.frames) != len(state.frames) or (len(state.frames) > 1 and not _same_callers(old, state)):
                continue
            if old.branches:
                if force:
                    if _may_close_loop(env, old, state, slot) and self._covers(env, old, state):
                        candidate.hits += 1
                        return True
                elif _looks_same(old, state) and _identical(old, state):
                    env.say(f"; {describe_frame(state.frame)}")
                    env.invalid(f"infinite loop detected at insn {slot}")
                if not force and self.jumps - self.kept_at_jumps < 20 and env.processed - self.kept_at_insns < 100:
                    keep = False
            elif self._covers(env, old, state):
                candidate.hits += 1
                return True
            if keep:
                candidate.misses += 1
                limit = 64 if force and old.branches else 3
                if candidate.misses > candidate.hits * limit + limit:
                    evicted.append(candidate)
        for candidate in evicted:
            candidates.remove(candidate)
        if keep:
            self._keep(env, candidates)
        return False

    def _keep(self, env: Env, candidates: list["_Checkpoint"]) -> None:
        self.kept_at_jumps, self.kept_at_insns = self.jumps, env.processed
        saved = env.state.copy()
        saved.slot = env.slot
        env.state.parent = saved
        candidates.append(_Checkpoint(saved))

    def _covers(self, env: Env, old: VerifierState, new: VerifierState) -> bool:
        """True if ``old`` includes all possibilities of ``new``."""
        if not _same_held(old, new):
            return False
        ids = _Ids()
        if not all(a.kind == b.kind and ids.match(a.id, b.id) for a, b in zip(old.refs, new.refs, strict=True)):
            return False
        last = len(old.frames) - 1
        for number, (a, b) in enumerate(zip(old.frames, new.frames, strict=True)):
            if number == last:
                live = self.flow.live[env.slot]
            else:
                live = self.flow.live[old.frames[number + 1].callsite + 1] & ~0b111111
            if not _frame_covers(a, b, live, ids):
                return False
        return True


class _Checkpoint:
    __slots__ = ("hits", "misses", "state")

    def __init__(self, state: VerifierState) -> None:
        self.state = state
        self.hits = 0
        self.misses = 0


def finish(state: VerifierState) -> None:
    """Finish a path: its checkpoints have one unfinished path less (``update_branch_counts``)."""
    at: VerifierState | None = state
    while at is not None:
        at.branches -= 1
        if at.branches:
            return
        at = at.parent


def _may_close_loop(env: Env, old: VerifierState, new: VerifierState, slot: int) -> bool:
    """At may_goto a round must have been taken in between."""
    return slot not in env.may_gotos or old.may_goto_depth != new.may_goto_depth


def _same_held(old: VerifierState, new: VerifierState) -> bool:
    return (
        len(old.refs) == len(new.refs)
        and old.rcu_read_locks == new.rcu_read_locks
        and old.preempt_disabled == new.preempt_disabled
        and old.in_sleepable == new.in_sleepable
    )


def _same_callers(old: VerifierState, new: VerifierState) -> bool:
    return all(a.callsite == b.callsite for a, b in zip(old.frames, new.frames, strict=True))


def _looks_same(old: VerifierState, new: VerifierState) -> bool:
    return old.frames[-1].regs == new.frames[-1].regs


def _identical(old: VerifierState, new: VerifierState) -> bool:
    """True if nothing has changed: the path loops forever."""
    if not _same_held(old, new) or old.may_goto_depth != new.may_goto_depth or old.loop_depth != new.loop_depth:
        return False
    return all(a.regs == b.regs and a.stack == b.stack for a, b in zip(old.frames, new.frames, strict=True))


def _frame_covers(old: FuncFrame, new: FuncFrame, live: int, ids: _Ids) -> bool:
    if old.subprog != new.subprog or old.callback_range != new.callback_range:
        return False
    for n in range(10):
        if live >> n & 1 and not reg_covers(old.regs[n], new.regs[n], ids):
            return False
    for index, slot in old.stack.items():
        other = new.stack.get(index)
        if other is slot and slot.reg is None:
            continue
        if not _slot_covers(slot, other, ids):
            return False
    return True


def _slot_covers(old: StackSlot, new: StackSlot | None, ids: _Ids) -> bool:
    if new is None:
        return all(kind is SlotKind.INVALID or kind is SlotKind.MISC for kind in old.kinds)
    spilled = False
    for a, b in zip(old.kinds, new.kinds, strict=True):
        if a is SlotKind.INVALID or a is b:
            spilled = spilled or a is SlotKind.SPILL
            continue
        if a is SlotKind.MISC and b not in (SlotKind.DYNPTR, SlotKind.ITER, SlotKind.IRQ_FLAG):
            if b is SlotKind.SPILL and (new.reg is None or not new.reg.is_scalar):
                return False
            continue
        return False
    if old.reg is None:
        return True
    if old.kinds[0] is SlotKind.SPILL:
        if old.kinds != new.kinds and not (new.reg is not None and new.kinds[0] is SlotKind.SPILL):
            return False
        return reg_covers(old.reg, new.reg or NOT_INIT, ids)
    return new.reg is not None and _special_covers(old.reg, new.reg, ids)


def _special_covers(old: Reg, new: Reg, ids: _Ids) -> bool:
    if not ids.match(old.ref_obj_id, new.ref_obj_id) or not ids.match(old.id, new.id):
        return False
    return old._replace(id=0, ref_obj_id=0) == new._replace(id=0, ref_obj_id=0)


def reg_covers(old: Reg, new: Reg, ids: _Ids) -> bool:
    """True if every value of ``new`` is a value of ``old`` (``regsafe``)."""
    kind = old.kind
    if kind is RegKind.NOT_INIT:
        return True
    if kind is not new.kind:
        return False
    if kind is RegKind.SCALAR_VALUE:
        if old.add_const != new.add_const and old.id:
            return False
        return range_covers(old.var, new.var) and (
            not old.id or (ids.match_number(old.id, new.id) and (not old.add_const or old.off == new.off))
        )
    if old.flags != new.flags or old.off != new.off or old.map is not new.map:
        return False
    if not ids.match(old.id, new.id) or not ids.match(old.ref_obj_id, new.ref_obj_id):
        return False
    if old.map_uid != new.map_uid and not ids.match(old.map_uid, new.map_uid):
        return False
    if old.var is not new.var and not range_covers(old.var, new.var):
        return False
    return (
        old.btf is new.btf
        and old.btf_id == new.btf_id
        and old.mem_size == new.mem_size
        and old.subprog == new.subprog
        and old.frame == new.frame
        and old.range <= new.range
        and old.detail == new.detail
    )


def range_covers(old: Scalar, new: Scalar) -> bool:
    """``range_within`` and ``tnum_in``."""
    return old is new or (
        old.umin <= new.umin
        and old.umax >= new.umax
        and old.smin <= new.smin
        and old.smax >= new.smax
        and old.u32_min <= new.u32_min
        and old.u32_max >= new.u32_max
        and old.s32_min <= new.s32_min
        and old.s32_max >= new.s32_max
        and contains(old.bits, new.bits)
    )
