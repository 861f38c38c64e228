"""Registers at the entry of a function, and the arguments that a call of a global function must pass."""

from dataclasses import dataclass
from errno import EFAULT

from trampoline.bpf.btf.btf import Btf, Type
from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.access.context import check_ctx_access, context_type
from trampoline.bpf.verifier.access.memory import check_helper_mem_access, check_ptr_off_reg
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.rules.context_types import is_context
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_MAX_ARGS = 5
_SCALARS = (BtfKind.INT, BtfKind.ENUM, BtfKind.ENUM64)
_ANY_OFFSET = (
    RegKind.PTR_TO_STACK,
    RegKind.PTR_TO_MAP_KEY,
    RegKind.PTR_TO_MAP_VALUE,
    RegKind.PTR_TO_MEM,
    RegKind.PTR_TO_BUF,
    RegKind.SCALAR_VALUE,
)
# Program types whose context is not converted (no convert_ctx_access), so that it can be read as memory.
_PLAIN_CONTEXTS = (
    ProgType.TRACING,
    ProgType.LSM,
    ProgType.KPROBE,
    ProgType.TRACEPOINT,
    ProgType.RAW_TRACEPOINT,
    ProgType.SYSCALL,
)


@dataclass(frozen=True, slots=True)
class _Param:
    """One argument of a global function: a number, the context, or memory of a size."""

    kind: RegKind
    size: int = 0
    null: bool = False


def set_main_arguments(env: Env) -> None:
    """Set R1 of ``env.frame`` at the program's start: its context; for an extension, by its own prototype."""
    if env.program.prog_type == ProgType.EXT:
        set_global_arguments(env, 0)
    else:
        env.set_reg(1, Reg(RegKind.PTR_TO_CTX))


def set_global_arguments(env: Env, subprog: int) -> None:
    """Set R1 to R5 of ``env.frame`` from the BTF prototype of a global function that is verified alone
    (``btf_prepare_func_args``). Refuses prototypes that cannot be verified.
    """
    for regno, param in enumerate(_params(env, subprog), 1):
        if param.kind is RegKind.SCALAR_VALUE:
            reg = UNKNOWN_REG
        elif param.kind is RegKind.PTR_TO_CTX:
            reg = Reg(RegKind.PTR_TO_CTX)
        else:
            flags = Flag.PTR_MAYBE_NULL if param.null else Flag.NONE
            reg = Reg(RegKind.PTR_TO_MEM, flags, id=env.new_id() if param.null else 0, mem_size=param.size)
        env.set_reg(regno, reg)


def check_global_call(env: Env, subprog: int) -> None:
    """Check R1 to R5 of ``env.frame`` against the prototype of a called global function (``btf_check_subprog_call``).

    The caller marks R0 to R5 afterwards.
    """
    if env.state.preempt_disabled or any(ref.kind == "irq" for ref in env.state.refs):
        if env.kernel.rules.calls.global_calls_by_sleep:
            env.unsupported("calls of global functions with preemption or interrupts disabled")
        env.invalid("global function calls are not allowed with preemption disabled,\nuse static function instead")
    try:
        for regno, param in enumerate(_params(env, subprog), 1):
            _check_param(env, regno, param)
    except VerifierError as error:
        if error.errno == EFAULT:
            raise
        assert env.program.btf is not None
        name = env.program.btf.type(env.subprog_types[subprog]).name
        shown = f" ('{name}')" if env.kernel.rules.calls.names_global else ""
        env.invalid(f"Caller passes invalid args into func#{subprog}{shown}")


def _params(env: Env, subprog: int) -> list[_Param]:
    btf = env.program.btf
    if btf is None or subprog >= len(env.subprog_types):
        env.refuse(EFAULT, "Global functions need valid BTF")
    func = btf.type(env.subprog_types[subprog])
    types, ret = btf.prototype(func.type_id)
    if len(types) > _MAX_ARGS:
        env.invalid(f"Global function {func.name}() with {len(types)} > {_MAX_ARGS} args. Buggy compiler.")
    if btf.unmodified(ret).kind not in _SCALARS:
        if ret == 0 and env.kernel.rules.calls.void_globals:
            env.unsupported("global functions without a return value")
        env.invalid(f"Global function {func.name}() doesn't return scalar. Only those are supported.")
    tags: dict[int, set[str]] = {}
    for tag in btf.decl_tags(func.id):
        if tag.name.startswith("arg:") and tag.component >= 0:
            tags.setdefault(tag.component, set()).add(tag.name.removeprefix("arg:"))
    return [_param(env, btf, func.name, n, type_id, tags.get(n, set())) for n, type_id in enumerate(types)]


def _param(env: Env, btf: Btf, function: str, index: int, type_id: int, tags: set[str]) -> _Param:
    kind = btf.unmodified(type_id)
    if not env.kernel.rules.calls.arg_tags:
        tags = set()
    if tags - {"ctx", "nonnull"}:
        env.unsupported(f"arguments tagged {', '.join(sorted(tags))}")
    if kind.kind is BtfKind.PTR:
        if "ctx" in tags or is_context(btf, kind.type_id, context_type(env)):
            if tags - {"ctx"}:
                env.invalid(f"arg#{index} has invalid combination of tags")
            return _Param(RegKind.PTR_TO_CTX)
        pointed = btf.unmodified(kind.type_id)
        if pointed.name == "bpf_dynptr":
            env.unsupported("dynptrs")
        return _Param(RegKind.PTR_TO_MEM, _size(env, btf, index, pointed), "nonnull" not in tags)
    if tags:
        env.invalid(f"arg#{index} has pointer tag, but is not a pointer type")
    if kind.kind in _SCALARS:
        return _Param(RegKind.SCALAR_VALUE)
    env.invalid(f"Arg#{index} type {kind.kind.name} in {function}() is not supported yet.")


def _size(env: Env, btf: Btf, index: int, pointed: Type) -> int:
    try:
        value = btf.value(pointed.id)
        if value.kind not in (BtfKind.VOID, BtfKind.FUNC_PROTO, BtfKind.FWD):
            return value.size
    except BtfError:
        pass
    name = "UNKNOWN" if pointed.kind is BtfKind.VOID else pointed.kind.name
    shown = "" if pointed.kind is BtfKind.VOID else pointed.name
    env.invalid(f"arg#{index} reference type('{name} {shown}') size cannot be determined: -22")


def _check_param(env: Env, regno: int, param: _Param) -> None:
    reg = env.reg(regno)
    if param.kind is RegKind.SCALAR_VALUE:
        if not reg.is_scalar:
            env.invalid(f"R{regno} is not a scalar")
        return
    if reg.kind not in _ANY_OFFSET:
        check_ptr_off_reg(env, regno, fixed_off_ok=reg.kind is RegKind.PTR_TO_BTF_ID)
    if param.kind is RegKind.PTR_TO_CTX:
        if reg.kind is not RegKind.PTR_TO_CTX:
            env.invalid(f"arg#{regno - 1} expects pointer to ctx")
        return
    _check_memory(env, regno, reg, param.size)
    if not param.null and (reg.maybe_null or reg.is_null):
        env.invalid(f"arg#{regno - 1} is expected to be non-NULL")


def _check_memory(env: Env, regno: int, reg: Reg, size: int) -> None:
    """``check_mem_reg``: the function may read and write ``size`` bytes there, unless NULL."""
    if reg.is_null:
        return
    plain = context_type(env) in _PLAIN_CONTEXTS and env.kernel.rules.calls.contexts_are_memory
    if reg.kind is RegKind.PTR_TO_CTX and plain:
        for write in (False, True):
            if size:
                check_ctx_access(env, regno, size - 1, 1, write, -1)
        return
    try:
        env.set_reg(regno, reg._replace(flags=reg.flags & ~Flag.PTR_MAYBE_NULL))
        for write in (False, True):
            check_helper_mem_access(env, regno, size, write=write, zero_ok=True)
    finally:
        env.set_reg(regno, reg)
