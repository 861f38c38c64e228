"""Calls of kernel functions by their BTF id."""

from errno import EACCES, EINVAL

from trampoline.bpf.helpers.kfuncs import Kf, Kfunc, kfuncs, may_call
from trampoline.bpf.isa.insn import CALL, CallKind, Insn
from trampoline.bpf.verifier.access.context import context_type
from trampoline.bpf.verifier.calls.iter_slots import give_next
from trampoline.bpf.verifier.calls.kfunc_args import KfuncCall, check_kfunc_args
from trampoline.bpf.verifier.calls.kfunc_returns import set_kfunc_result
from trampoline.bpf.verifier.calls.return_code import check_return_code
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.sections import atomic_section, may_sleep

_KFUNC_TAG = "bpf_kfunc"
# Functions that 6.1 registers only for program types that are not modelled; its BTF has no kfunc tags.
_UNMARKED = frozenset({"bpf_verify_pkcs7_signature", "cgroup_rstat_updated", "cgroup_rstat_flush"})
_TEST_PREFIX = "bpf_kfunc_call_"

# The session's direction is a bit of the word before the context.
_USES = {"bpf_session_cookie": "session_cookie", "bpf_session_is_return": "arg_cnt"}


def is_throw(env: Env, insn: Insn) -> bool:
    """True for a call of bpf_throw, which does not return."""
    if insn.code != CALL or insn.src != CallKind.KFUNC or insn.off or insn.imm <= 0:
        return False
    return env.kernel.btf.function(insn.imm).name == "bpf_throw"


def check_kfunc_call(env: Env, insn: Insn) -> None:
    """``check_kfunc_call``: a call with src 2 at ``env.slot``.

    As ``calls.check_helper_call``. For an iterator's ``next`` it calls ``frames.push_iteration``.
    """
    if insn.imm == 0:
        env.invalid("invalid kernel function call not eliminated in verifier pass")
    call = _find(env, insn.imm)
    if env.state.active_locks:
        env.invalid("function calls are not allowed while holding a lock")
    env.fact.kfunc = insn.imm
    kfunc = call.kfunc
    if kfunc.has(Kf.SLEEPABLE) and not may_sleep(env):
        env.denied(f"program must be sleepable to call sleepable kfunc {kfunc.name}")
    check_kfunc_args(env, call)
    _regions(env, kfunc)
    if call.release_regno:
        number = env.reg(call.release_regno).ref_obj_id
        if not refs.release(env, number):
            env.invalid(f"kfunc {kfunc.name}#{insn.imm} reference has not been acquired before")
    if kfunc.name == "bpf_throw" and not any(function.is_exception_callback for function in env.subprogs):
        check_return_code(env, 1)
    for n in range(6):
        env.mark_not_init(n)
    set_kfunc_result(env, call)
    if kfunc.has(Kf.ITER_NEXT):
        give_next(env, call)
    if kfunc.name in _USES:
        env.uses.add(_USES[kfunc.name])


def _find(env: Env, type_id: int) -> KfuncCall:
    """The function; refuses one that this program may not call."""
    rules, btf = env.kernel.rules.helpers, env.kernel.btf
    func = btf.function(type_id)
    kfunc = kfuncs(rules.version).get(func.name)
    if kfunc is not None and may_call(rules, kfunc, context_type(env), env.program.attach):
        return KfuncCall(kfunc, func)
    if kfunc is None and (
        any(tag.name == _KFUNC_TAG for tag in btf.decl_tags(type_id))
        or func.name in _UNMARKED
        or func.name.startswith(_TEST_PREFIX)
    ):
        env.unsupported(f"calls of {func.name}")
    env.refuse(EACCES, f"calling kernel function {func.name} is not allowed")


def _regions(env: Env, kfunc: Kfunc) -> None:
    """Enter and leave RCU read sections and regions without preemption; refuses sleepable functions inside."""
    state, name = env.state, kfunc.name
    said = f"(kernel function {name})"
    if name == "bpf_rcu_read_lock":
        if state.rcu_read_locks and not env.kernel.rules.kfuncs.nested_rcu:
            env.invalid(f"nested rcu read lock {said}")
        state.rcu_read_locks += 1
    elif name == "bpf_rcu_read_unlock":
        if not state.rcu_read_locks:
            env.invalid(f"unmatched rcu read unlock {said}")
        state.rcu_read_locks -= 1
        if not state.rcu_read_locks:
            refs.leave_rcu(env)
    elif name == "bpf_preempt_disable":
        state.preempt_disabled += 1
    elif name == "bpf_preempt_enable":
        if not state.preempt_disabled:
            env.refuse(EINVAL, f"unmatched attempt to enable preemption {said}")
        state.preempt_disabled -= 1
    elif kfunc.has(Kf.SLEEPABLE) and (section := atomic_section(env)):
        env.denied(f"kernel func {name} is sleepable within {section}")
