"""Control flow before the walk: reachability, points where paths meet (``check_cfg``), live registers."""

from dataclasses import dataclass, field

from trampoline.bpf.helpers.protos import helper_number
from trampoline.bpf.isa.insn import CALL, EXIT, GOTO, GOTOL, GOTOX, LD_IMM64, MAY_GOTO, CallKind, Cls, Insn, Jmp
from trampoline.bpf.verifier.prepass.insn_fields import is_call_of_function, is_function_address
from trampoline.bpf.verifier.prepass.registers import uses_and_defines
from trampoline.bpf.verifier.prepass.subprogs import target_of
from trampoline.bpf.verifier.state.env import Env

_DISCOVERED, _DONE = 1, 2
_CALLS_BACK = frozenset(map(helper_number, ("for_each_map_elem", "find_vma", "loop", "user_ringbuf_drain")))


@dataclass(slots=True)
class Flow:
    """Control flow facts of every slot."""

    prune: set[int] = field(default_factory=set)
    """Slots at which states are compared with those of other paths."""
    loops: set[int] = field(default_factory=set)
    """Targets of backward jumps."""
    live: list[int] = field(default_factory=list)
    """By slot, bit mask of the registers that may be read before they are written."""


def successors(env: Env, slot: int, insn: Insn) -> list[int]:
    """Slots in the same function that may follow, the fall-through first."""
    cls = insn.code & 7
    if insn.code == EXIT:
        return []
    if insn.code == LD_IMM64:
        return [slot + 2]
    if cls not in (Cls.JMP, Cls.JMP32) or insn.op == Jmp.CALL:
        return [slot + 1]
    if insn.code == GOTOX:
        env.invalid(f"no jump tables found for subprog starting at {max(s for s in env.subprog_at if s <= slot)}")
    target = slot + 1 + (insn.imm if insn.code == GOTOL else insn.off)
    if insn.code in (GOTO, GOTOL):
        return [target]
    return [slot + 1, target]


def check_cfg(env: Env) -> Flow:
    """Walk all edges depth first. Refuses unreachable instructions and, in 6.1, loops of calls."""
    flow = Flow()
    colour: dict[int, int] = {}
    following: dict[int, list[int]] = {}
    _search(env, 0, flow, colour, following)
    _check_reached(env, colour)
    flow.live = _live_registers(env, following)
    return flow


def _edges(env: Env, slot: int, insn: Insn, flow: Flow, following: dict[int, list[int]]) -> list[tuple[int, bool]]:
    """(slot, True if a loop through this edge is allowed); records facts of the slot."""
    after = successors(env, slot, insn)
    following[slot] = after
    edges = [(target, True) for target in after]
    if insn.code == CALL:
        flow.prune.add(slot + 1)
    if is_call_of_function(insn) or is_function_address(insn):
        callee = target_of(slot, insn)
        flow.prune.update((slot, callee))
        edges.append((callee, is_function_address(insn) or not env.rules.refuses_call_loops))
    elif len(after) == 2:
        flow.prune.update((slot, after[1]))
    elif insn.code in (GOTO, GOTOL):
        flow.prune.add(after[0])
    if insn.code == CALL and insn.src == CallKind.HELPER and insn.imm in _CALLS_BACK and not env.rules.callback_once:
        flow.prune.add(slot)
        env.callback_slots.add(slot)
    if insn.code == MAY_GOTO or (insn.code == CALL and insn.src == CallKind.KFUNC):
        flow.prune.add(slot)
    return edges


def _search(env: Env, start: int, flow: Flow, colour: dict[int, int], following: dict[int, list[int]]) -> None:
    stack: list[tuple[int, list[tuple[int, bool]]]] = []

    def enter(slot: int) -> None:
        insn = env.insns[slot]
        env.slot = slot
        colour[slot] = _DISCOVERED
        if insn is None:
            env.invalid(f"jump into the middle of ldimm64 insn {slot - 1}")
        stack.append((slot, _edges(env, slot, insn, flow, following)))

    enter(start)
    while stack:
        slot, edges = stack[-1]
        if not edges:
            colour[slot] = _DONE
            stack.pop()
            continue
        target, may_loop = edges.pop()
        if target >= len(env.insns):
            env.invalid(f"jump out of range from insn {slot} to {target}")
        seen = colour.get(target)
        if seen is None:
            enter(target)
        elif seen == _DISCOVERED:
            if not may_loop or not env.capabilities.bpf:
                env.invalid(f"back-edge from insn {slot} to {target}")
            flow.loops.add(target)


def _check_reached(env: Env, colour: dict[int, int]) -> None:
    for slot, insn in enumerate(env.insns):
        if insn is not None and slot not in colour:
            env.slot = slot
            env.invalid(f"unreachable insn {slot}")


def _live_registers(env: Env, following: dict[int, list[int]]) -> list[int]:
    """Backward analysis to a fixed point; calls read R1 to R5 and write R0 to R5, an exit reads R0."""
    live = [0] * (len(env.insns) + 1)
    effects = {slot: uses_and_defines(insn) for slot, insn in enumerate(env.insns) if insn is not None}
    order = sorted(following, reverse=True)
    changed = True
    while changed:
        changed = False
        for slot in order:
            after = 0
            for target in following[slot]:
                after |= live[target]
            used, defined = effects[slot]
            before = used | (after & ~defined)
            if before != live[slot]:
                live[slot] = before
                changed = True
    return live
