"""Calls of helpers: permission, arguments, results."""

from trampoline.bpf.helpers.availability import Caller, helper_for, is_known
from trampoline.bpf.helpers.protos import helper_names
from trampoline.bpf.isa.insn import Insn
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.access.context import context_type
from trampoline.bpf.verifier.access.memory import mark_written
from trampoline.bpf.verifier.access.pointers import is_gpl
from trampoline.bpf.verifier.calls.call_args import check_args
from trampoline.bpf.verifier.calls.call_returns import set_result
from trampoline.bpf.verifier.calls.callbacks import call_back
from trampoline.bpf.verifier.calls.const_args import check_format
from trampoline.bpf.verifier.calls.dynptrs import release_dynptr
from trampoline.bpf.verifier.calls.frames import check_leaks
from trampoline.bpf.verifier.calls.helper_allowed import is_allowed
from trampoline.bpf.verifier.calls.map_calls import check_map_func_compatibility, record_map
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.call_meta import CallMeta
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.sections import atomic_section, may_sleep
from trampoline.bpf.verifier.values.kinds import RegKind

_ENOTSUPP = 524
_UNDER_LOCK = ("spin_unlock", "kptr_xchg")
_USES = {
    "get_func_ip": "func_ip",
    "get_func_arg": "arg_cnt",
    "get_func_ret": "arg_cnt",
    "get_func_arg_cnt": "arg_cnt",
    "get_attach_cookie": "run_ctx",
    "get_retval": "run_ctx",
    "set_retval": "run_ctx",
    "get_local_storage": "run_ctx",
}


def check_helper_call(env: Env, insn: Insn) -> None:
    """``check_helper_call``: a call with src 0 of helper ``insn.imm`` at ``env.slot``.

    Checks R1 to R5 of ``env.frame``, marks R0 to R5, records ``env.fact`` and ``env.uses``. With a callback it calls
    ``frames.push_callback`` after the arguments are checked and before it clobbers the caller's registers.
    """
    meta = _find(env, insn.imm)
    if env.state.active_locks and meta.name not in _UNDER_LOCK:
        env.invalid("function calls are not allowed while holding a lock")
    _check_allowed(env, meta)
    check_args(env, meta)
    record_map(env, meta)
    for regno, count in meta.written:
        if count:
            mark_written(env, regno, count)
    if meta.release_regno:
        _release(env, meta)
    _check_special(env, meta)
    callee_of = env.frame
    call_back(env, meta)
    for n in range(6):
        env.mark_not_init(n)
    assert env.frame is callee_of
    set_result(env, meta)
    check_map_func_compatibility(env, meta)
    if meta.name == "get_func_ip":
        _check_func_ip(env, meta)
    if use := _USES.get(meta.name):
        env.uses.add(use)


def caller_of(env: Env) -> Caller:
    """The program's attributes for the tables of helpers; an extension has those of the program that it extends."""
    program = env.program
    kind = context_type(env)
    attach = program.attach
    if program.prog_type == ProgType.EXT and env.target is not None and env.target.prog is not None:
        attach = env.target.prog.attach
    name = env.target.name if env.target is not None else ""
    able = env.capabilities
    return Caller(env.kernel.rules.helpers, kind, attach, program.sleepable, name, able.bpf, able.perfmon)


def _find(env: Env, number: int) -> CallMeta:
    if not is_known(env.kernel.rules.helpers, number):
        env.invalid(f"invalid func unknown#{number}")
    name = helper_names()[number]
    proto = helper_for(caller_of(env), number)
    if proto is None:
        env.invalid(env.kernel.rules.calls.unavailable.format(name=f"bpf_{name}", number=number))
    return CallMeta(name, number, proto)


def _check_allowed(env: Env, meta: CallMeta) -> None:
    """Checks that do not depend on arguments: licence, attach point, sleeping."""
    if meta.proto.gpl_only and not is_gpl(env):
        env.invalid("cannot call GPL-restricted function from non-GPL compatible program")
    if not is_allowed(env, meta.proto.allowed):
        env.invalid("helper call is not allowed in probe")
    if not meta.proto.sleeps:
        return
    section = atomic_section(env)
    if not env.kernel.rules.calls.names_context:
        if not may_sleep(env):
            env.invalid("helper call might sleep in a non-sleepable prog")
    elif not section and not may_sleep(env):
        section = "non-sleepable prog"
    if section:
        env.invalid(f"sleepable helper {meta.shown} in {section}")


def _release(env: Env, meta: CallMeta) -> None:
    if meta.dynptr is not None:
        release_dynptr(env, meta.release_regno)
        return
    if meta.ref_obj_id and refs.release(env, meta.ref_obj_id):
        return
    if not env.reg(meta.release_regno).is_null:
        env.invalid(f"func {meta.shown} reference has not been acquired before")


def _check_special(env: Env, meta: CallMeta) -> None:
    """Requirements of single helpers beyond their prototype."""
    if meta.name == "tail_call":
        check_leaks(env, at="tail_call")
    elif meta.name == "get_local_storage" and not env.reg(2).is_null:
        env.invalid("get_local_storage() doesn't support non-zero flags")
    elif meta.name == "snprintf":
        check_format(env)
    elif meta.name == "dynptr_from_mem" and env.reg(1).kind is not RegKind.PTR_TO_MAP_VALUE:
        name = env.type_name(env.reg(1))
        env.denied(f"Unsupported reg type {name} for bpf_dynptr_from_mem data")
    elif meta.name == "set_retval" and env.program.attach == AttachType.LSM_CGROUP:
        env.unsupported("bpf_set_retval in LSM programs of cgroups")


def _check_func_ip(env: Env, meta: CallMeta) -> None:
    """``check_get_func_ip``."""
    caller = caller_of(env)
    if caller.prog_type == ProgType.TRACING:
        if not caller.has_trampoline:
            kinds = env.kernel.rules.calls.func_ip_kinds
            env.refuse(_ENOTSUPP, f"func {meta.shown} supported only for {kinds} programs")
    elif caller.prog_type != ProgType.KPROBE:
        env.refuse(_ENOTSUPP, f"func {meta.shown} not supported for program type {int(caller.prog_type)}")
