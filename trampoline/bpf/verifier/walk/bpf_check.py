"""The verification of one program: the order of its passes (``bpf_check``)."""

from errno import E2BIG

from trampoline.bpf.isa.insn import CALL, LD_IMM64, MAY_GOTO, CallKind, Insn
from trampoline.bpf.prog import Uses
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.calls.entry_state import set_global_arguments, set_main_arguments
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.prepass.cfg import Flow, check_cfg
from trampoline.bpf.verifier.prepass.insn_fields import check_code, check_fields
from trampoline.bpf.verifier.prepass.subprogs import check_functions, end_of, find_functions, slots_of
from trampoline.bpf.verifier.state.env import Capabilities, Env
from trampoline.bpf.verifier.state.result import Verified
from trampoline.bpf.verifier.state.state import FuncFrame, Reg, VerifierState
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.walk.do_check import INSN_LIMIT, walk
from trampoline.bpf.verifier.walk.imm64 import resolve
from trampoline.bpf.verifier.walk.stack_depth import check_depth, order_by_calls

_CALLING_BACK = frozenset({164, 180, 181, 209})
"""Helpers that call back during the call: for_each_map_elem, find_vma, loop, user_ringbuf_drain."""


def bpf_check(
    program: BpfProgram,
    kernel: KernelView,
    target: AttachTarget | None = None,
    *,
    capabilities: Capabilities | None = None,
    log_level: int = 1,
) -> Verified:
    """Verify a program whose load attributes and target are checked.

    ``log_level`` 1 logs the failing path, 2 all paths, with registers. Raises VerifierError if the kernel refuses,
    Unsupported if verifier-lite cannot decide.
    """
    env = Env(program, kernel, target, capabilities, log_level)
    if len(env.insns) > INSN_LIMIT:
        env.refuse(E2BIG, "")
    find_functions(env)
    check_functions(env)
    _check_insns(env)
    flow = check_cfg(env)
    if env.rules.call_loops_by_order:
        order_by_calls(env)
    if env.rules.main_first:
        _verify_main(env, flow)
        _verify_called_globals(env, flow)
    else:
        for number, function in enumerate(env.subprogs):
            if number and function.is_global and env.subprog_types:
                _verify_global(env, flow, number)
        _verify_main(env, flow)
    check_depth(env)
    _add_own_stack(env)
    return _result(env)


def _check_insns(env: Env) -> None:
    """Check every instruction on its own, reachable or not."""
    for slot, insn in enumerate(env.insns):
        if insn is None:
            continue
        env.slot = slot
        if env.rules.fields_first:
            check_code(env, insn)
            check_fields(env, insn)
        if insn.code == LD_IMM64:
            resolve(env, insn)
        if not env.rules.fields_first:
            check_code(env, insn)
        _note_loop(env, slot, insn)


def _note_loop(env: Env, slot: int, insn: Insn) -> None:
    """Record the start of each round of a loop that the kernel ends, so that its state is always compared."""
    if insn.code == MAY_GOTO:
        env.force_checkpoints.add(slot)
        env.may_gotos.add(slot)
    elif insn.code == CALL and insn.src == CallKind.HELPER and insn.imm in _CALLING_BACK:
        if not env.rules.callback_once:
            env.callback_slots.add(slot)
    elif insn.code == CALL and insn.src == CallKind.KFUNC and 0 < insn.imm < len(env.kernel.btf):
        name = env.kernel.btf.type(insn.imm).name
        if name.startswith("bpf_iter_") and name.endswith("_next"):
            env.force_checkpoints.add(slot)


def _verify_main(env: Env, flow: Flow) -> None:
    start = _begin(env, 0)
    set_main_arguments(env)
    walk(env, flow, start, 0)


def _verify_called_globals(env: Env, flow: Flow) -> None:
    """Verify each global function that a verified one calls, until no new one is found."""
    verified: set[int] = set()
    while waiting := sorted(env.called_globals - verified):
        number = waiting[0]
        verified.add(number)
        _verify_global(env, flow, number)


def _verify_global(env: Env, flow: Flow, number: int) -> None:
    env.say(f"Validating {env.subprogs[number].name}() func#{number}...")
    start = _begin(env, number)
    set_global_arguments(env, number)
    walk(env, flow, start, env.subprogs[number].start)
    env.say(f"Func#{number} is safe for any args that match its prototype")


def _begin(env: Env, subprog: int) -> VerifierState:
    frame = FuncFrame(subprog, 0, -1)
    frame.regs[10] = Reg(RegKind.PTR_TO_STACK)
    state = VerifierState(frame)
    state.in_sleepable = env.program.sleepable
    env.state, env.frame = state, frame
    env.slot = env.subprogs[subprog].start
    return state


def _add_own_stack(env: Env) -> None:
    """Add stack that the rewriting of loops uses: three registers for an inlined bpf_loop (``optimize_bpf_loop``), the
    count of may_goto.
    """
    for number, function in enumerate(env.subprogs):
        slots = range(function.start, end_of(env, number))
        if any(env.facts[slot].inlines_loop for slot in slots):
            function.stack_depth = (function.stack_depth + 7 & ~7) + 24
        reached = (slot for slot in slots if env.facts[slot].seen)
        if any(insn is not None and insn.code == MAY_GOTO for insn in map(env.insns.__getitem__, reached)):
            function.stack_depth += env.rules.may_goto_stack


def _result(env: Env) -> Verified:
    return Verified(
        env.program,
        [env.facts[slot] for slot in slots_of(env)],
        env.subprogs,
        Uses(
            func_ip="func_ip" in env.uses,
            arg_cnt="arg_cnt" in env.uses,
            run_ctx="run_ctx" in env.uses,
            session_cookie="session_cookie" in env.uses,
        ),
        frozenset(env.accessed_args),
        env.accesses_ret,
        env.max_ctx_offset,
        tuple(env.maps),
        env.final_log(),
    )
