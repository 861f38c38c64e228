"""Calls from BPF to BPF: static and global functions, callbacks, their frames."""

from collections.abc import Callable
from errno import E2BIG, EACCES, EINVAL

from trampoline.bpf.isa.insn import Insn
from trampoline.bpf.verifier.calls.entry_state import check_global_call
from trampoline.bpf.verifier.prepass.subprogs import target_of
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import NOT_INIT, UNKNOWN_REG, FuncFrame, Reg, StackSlot, VerifierState
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind

Setup = Callable[[Env, FuncFrame, FuncFrame], None]
"""Sets the callee's R1 to R5 from the caller's registers: (env, caller, callee). It may refuse."""

MAX_ASYNC_NESTING = 8


def call(env: Env, insn: Insn) -> None:
    """Walk a call of one of the program's functions (``check_func_call``)."""
    subprog = env.subprog_at[target_of(env.slot, insn)]
    caller = env.frame
    if env.subprogs[subprog].is_global and env.subprog_types:
        if env.state.active_locks:
            env.invalid("global function calls are not allowed while holding a lock,\nuse static function instead")
        check_global_call(env, subprog)
        clobber(caller)
        caller.regs[0] = UNKNOWN_REG
        env.called_globals.add(subprog)
        return
    callee = _enter(env, env.state, subprog, env.slot)
    callee.regs[1:6] = caller.regs[1:6]
    clobber(caller)
    env.frame = callee
    env.next_slot = env.subprogs[subprog].start


def clobber(frame: FuncFrame) -> None:
    """Mark R0 to R5 as not initialised after a call."""
    frame.regs[0:6] = [NOT_INIT] * 6


def _enter(env: Env, state: VerifierState, subprog: int, callsite: int) -> FuncFrame:
    """Push a frame with only its frame pointer initialised."""
    if len(state.frames) >= env.rules.max_frames:
        env.refuse(E2BIG, f"the call stack of {len(state.frames) + 1} frames is too deep")
    number = len(state.frames)
    callee = FuncFrame(subprog, number, callsite)
    callee.regs[10] = Reg(RegKind.PTR_TO_STACK, frame=number)
    state.frames.append(callee)
    return callee


def push_callback(
    env: Env,
    subprog: int,
    setup: Setup,
    *,
    returns: tuple[int, int] = (0, 1),
    kfunc: bool = False,
    limit: int | None = None,
) -> None:
    """Walk function ``subprog`` as a callback of the call at ``env.slot``, called any number of times during it.

    ``returns``: allowed results of the callback, inclusive. ``limit``: maximum number of calls if known (bpf_loop's
    count, by its register's upper bound). The caller then marks R0 to R5 of the current frame: ``env.frame`` does not
    change before this function returns.
    """
    caller = env.frame
    if env.rules.callback_once:
        # The body is part of this path: its frame is entered after the call has been checked.
        callee = _enter(env, env.state, subprog, env.slot)
        setup(env, caller, callee)
        _mark_callback(callee, returns)
        env.state.frames.pop()
        env.entered_callback = callee
        return
    env.callback_slots.add(env.slot)
    if limit is not None and caller.depth >= limit:
        caller.depth = 0
        return
    other = env.push_branch(env.subprogs[subprog].start)
    callee = _enter(env, other, subprog, env.slot)
    setup(env, other.frames[-2], callee)
    _mark_callback(callee, returns)
    other.loop_depth += 1
    other.frames[-2].depth += 1
    caller.depth = 0


def _mark_callback(callee: FuncFrame, returns: tuple[int, int]) -> None:
    callee.in_callback = True
    callee.callback_range = returns


def push_async_callback(
    env: Env, subprog: int, setup: Setup, *, returns: tuple[int, int] = (0, 0), sleepable: bool = False
) -> None:
    """The same for a callback that runs later and on its own (timers, work queues)."""
    if env.frame.depth > MAX_ASYNC_NESTING or env.async_entries.get(subprog, 0) > MAX_ASYNC_NESTING:
        return
    env.async_entries[subprog] = env.async_entries.get(subprog, 0) + 1
    other = env.push_branch(env.subprogs[subprog].start)
    caller = env.frame
    callee = FuncFrame(subprog, 0, -1)
    callee.regs[10] = Reg(RegKind.PTR_TO_STACK)
    other.frames = [callee]
    other.refs = ()
    other.in_sleepable = sleepable
    setup(env, caller, callee)
    _mark_callback(callee, returns)
    callee.in_async_callback = True


def push_iteration(env: Env, null: Callable[[FuncFrame], None], again: Callable[[FuncFrame], None]) -> None:
    """``process_iter_next_call``: an iterator's ``next`` at ``env.slot`` returns NULL on one path, an element on
    another.

    ``null`` and ``again`` are called with the innermost frame of their path, after the call has marked registers; they
    set R0 and the iterator's state.
    """
    other = env.push_branch(env.slot + 1)
    other.loop_depth += 1
    again(other.frame)
    previous = previous_round(env)
    if previous is not None:
        widen(previous, other)
    null(env.frame)


def leave(env: Env) -> None:
    """Walk the exit of a function that is not the outermost one (``prepare_func_exit``)."""
    state = env.state
    callee, caller = state.frames[-1], state.frames[-2]
    result = callee.regs[0]
    if result.kind is RegKind.PTR_TO_STACK:
        env.invalid("cannot return stack pointer to the caller")
    if callee.in_callback:
        if not result.is_scalar:
            env.refuse(EACCES, "R0 not a scalar value")
        check_range(env, 0, callee.callback_range, "At callback return")
    else:
        caller.regs[0] = result
    state.frames.pop()
    env.frame = caller
    if not callee.in_callback or env.rules.callback_once:
        env.next_slot = callee.callsite + 1
        return
    env.next_slot = callee.callsite
    previous = previous_entry(state, callee.callsite)
    if previous is not None:
        widen(previous, state)


def previous_round(env: Env) -> VerifierState | None:
    """The previous round's checkpoint at ``env.slot``; this round's has just been made."""
    made = env.state.parent
    return previous_entry(made, env.slot) if made is not None and made.slot == env.slot else None


def previous_entry(state: VerifierState, slot: int) -> VerifierState | None:
    """The last checkpoint of this path at a slot, in the same frames (``find_prev_entry``)."""
    previous = state.parent
    while previous is not None and (previous.slot != slot or len(previous.frames) != len(state.frames)):
        previous = previous.parent
    return previous


def widen(previous: VerifierState, state: VerifierState) -> None:
    """Make numbers that differ between two rounds of a loop unknown (``widen_imprecise_scalars``)."""
    for old, frame in zip(previous.frames, state.frames, strict=True):
        for n, reg in enumerate(frame.regs):
            frame.regs[n] = _widened(old.regs[n], reg)
        for index, slot in frame.stack.items():
            before = old.stack.get(index)
            if before is None or before.reg is None or slot.reg is None or slot.kinds[0] is not SlotKind.SPILL:
                continue
            reg = _widened(before.reg, slot.reg)
            if reg is not slot.reg:
                frame.stack[index] = StackSlot(slot.kinds, reg)


def _widened(old: Reg, reg: Reg) -> Reg:
    if old.is_scalar and reg.is_scalar and old.var != reg.var:
        return UNKNOWN_REG
    return reg


def check_range(env: Env, regno: int, allowed: tuple[int, int], where: str) -> None:
    """Refuse a number outside ``allowed`` (``retval_range_within``)."""
    var = env.frame.regs[regno].var
    low, high = allowed
    within = var.smin >= low and var.smax <= high
    if env.rules.callback_once:
        within = var.umin >= low and var.umax <= high
    if within:
        return
    found = "unknown scalar value" if var.is_unknown else f"smin={var.smin} smax={var.smax}"
    env.refuse(EINVAL, f"{where} the register R{regno} has {found} should have been in [{low}, {high}]")


def check_leaks(env: Env, *, at: str = "BPF_EXIT instruction", callback: FuncFrame | None = None) -> None:
    """Refuse a path that ends with unreleased resources (``check_resource_leak``)."""
    state = env.state
    left = [ref for ref in state.refs if ref.kind == "pointer" and (callback is None or ref.frame == callback.number)]
    if left:
        for ref in left[:-1]:
            env.say(f"Unreleased reference id={ref.id} alloc_insn={ref.slot}")
        env.invalid(f"Unreleased reference id={left[-1].id} alloc_insn={left[-1].slot}")
    if callback is not None:
        return
    if state.active_locks:
        env.invalid(f"{at} cannot be used inside bpf_spin_lock-ed region")
    if state.rcu_read_locks:
        env.invalid(f"{at} cannot be used inside bpf_rcu_read_lock-ed region")
    if state.preempt_disabled:
        env.invalid(f"{at} cannot be used inside bpf_preempt_disable-ed region")
    if any(ref.kind == "irq" for ref in state.refs):
        env.invalid(f"{at} cannot be used inside bpf_local_irq_save-ed region")
