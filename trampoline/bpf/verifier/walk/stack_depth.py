"""Depth of nested calls and their total stack size (``check_max_stack_depth``)."""

from errno import E2BIG

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.prepass.insn_fields import is_call_of_function, is_function_address
from trampoline.bpf.verifier.prepass.subprogs import end_of, target_of
from trampoline.bpf.verifier.state.env import Env

MAX_STACK = 512
_TAIL_CALL_STACK = 256
PRIVATE_STACK_ABOVE = 64
"""Minimum frame size in bytes, exclusive, for the private stack, if the release has one."""
_ALWAYS_PRIVATE = frozenset({ProgType.KPROBE, ProgType.TRACEPOINT, ProgType.PERF_EVENT, ProgType.RAW_TRACEPOINT})


def callees(env: Env, subprog: int, *, addresses: bool = True) -> list[int]:
    """Functions that ``subprog`` calls, or with ``addresses`` takes the address of, in order."""
    found = []
    for slot in range(env.subprogs[subprog].start, end_of(env, subprog)):
        insn = env.insns[slot]
        if insn is not None and (is_call_of_function(insn) or (addresses and is_function_address(insn))):
            found.append(env.subprog_at[target_of(slot, insn)])
    return found


def order_by_calls(env: Env) -> None:
    """Refuse direct and indirect recursion (since 7.1 before the walk)."""
    done: set[int] = set()
    path: list[tuple[int, list[int]]] = [(0, callees(env, 0, addresses=False))]
    on_path = {0}
    while path:
        number, left = path[-1]
        if not left:
            path.pop()
            on_path.discard(number)
            done.add(number)
            continue
        callee = left.pop(0)
        if callee in on_path:
            names = env.subprogs[number].name, env.subprogs[callee].name
            env.invalid(f"recursive call from {names[0]}() to {names[1]}()")
        if callee not in done:
            path.append((callee, callees(env, callee, addresses=False)))
            on_path.add(callee)


def check_depth(env: Env) -> None:
    """Refuse chains of calls that are too deep or use too much stack; decides which functions get a private stack."""
    private = _has_private_stack(env)
    _check_from(env, [0], private)
    for number, function in enumerate(env.subprogs):
        if number in env.async_entries:
            _check_from(env, [number], False)
        del function
    _mark_tail_calls(env)


def _has_private_stack(env: Env) -> bool:
    if not env.rules.private_stack or any(function.has_tail_call for function in env.subprogs):
        return False
    kind = env.program.prog_type
    if kind in _ALWAYS_PRIVATE:
        return True
    return kind == ProgType.TRACING and env.program.attach != AttachType.TRACE_ITER


def _rounded(env: Env, subprog: int) -> int:
    step = env.rules.frame_round
    return -(-max(env.subprogs[subprog].stack_depth, 1) // step) * step


def _check_from(env: Env, chain: list[int], private: bool) -> None:
    """Depth first over calls; ``chain``: the active functions."""
    visited: set[tuple[int, int, int]] = set()
    waiting: list[tuple[tuple[int, ...], int]] = [((chain[0],), 0)]
    while waiting:
        active, depth = waiting.pop()
        subprog = active[-1]
        function = env.subprogs[subprog]
        if (subprog, depth, len(active)) in visited:
            continue
        visited.add((subprog, depth, len(active)))
        if len(active) > 1 and function.has_tail_call and depth >= _TAIL_CALL_STACK:
            env.denied(f"tail_calls are not allowed when call stack of previous frames is {depth} bytes. Too large")
        own = _rounded(env, subprog)
        if private and own > PRIVATE_STACK_ABOVE:
            function.uses_private_stack = True
            if own > MAX_STACK:
                env.denied(f"stack size of subprog {subprog} is {own}. Too large")
        else:
            depth += own
            if depth > MAX_STACK:
                env.denied(f"combined stack size of {len(active)} calls is {depth}. Too large")
        for callee in callees(env, subprog):
            if callee in env.async_entries and callee not in callees(env, subprog, addresses=False):
                continue
            if len(active) >= env.rules.max_frames:
                env.refuse(E2BIG, f"the call stack of {len(active) + 1} frames is too deep !")
            if callee in active:
                continue
            waiting.append(((*active, callee), depth))


def _mark_tail_calls(env: Env) -> None:
    """Mark functions from which a tail call is reachable: they pass the counter on (``tail_call_reachable``)."""
    reaching = {number for number, function in enumerate(env.subprogs) if function.has_tail_call}
    changed = True
    while changed:
        changed = False
        for number in range(len(env.subprogs)):
            if number not in reaching and any(callee in reaching for callee in callees(env, number)):
                reaching.add(number)
                changed = True
    for number in reaching:
        env.subprogs[number].tail_call_reachable = True
