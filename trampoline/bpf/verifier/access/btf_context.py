"""Contexts that contain a traced function's arguments, by its BTF prototype (``btf_ctx_access``, kernel/bpf/btf.c)."""

from functools import cache
from importlib.resources import files
from itertools import accumulate

from emu.machine.address_map import round_up
from trampoline.bpf.btf.btf import Btf, Type
from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.access.bpf_lsm import is_trusted_hook, retval_range
from trampoline.bpf.verifier.access.context_field import ContextAccess, ContextField
from trampoline.bpf.verifier.access.iterators import iterator_field
from trampoline.bpf.verifier.access.struct_walk import pointee
from trampoline.bpf.verifier.rules.context_types import is_context, kernel_struct
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.bpf.verifier.values.scalar_range import signed32_range

BTF_SLOTS = 12 * 8
"""Size of the largest context in bytes: MAX_BPF_FUNC_ARGS slots."""
_DEFAULT_ARGS = 5
_EXITS = (
    AttachType.TRACE_FEXIT,
    AttachType.TRACE_FSESSION,
    AttachType.TRACE_FEXIT_MULTI,
    AttachType.TRACE_FSESSION_MULTI,
)
_LSM = (AttachType.LSM_MAC, AttachType.LSM_CGROUP)
_ENUMS = (BtfKind.ENUM, BtfKind.ENUM64)
_STRUCTS = (BtfKind.STRUCT, BtfKind.UNION)
TRACE_PREFIX = "btf_trace_"


def btf_field(env: Env, access: ContextAccess) -> ContextField | None:
    """Result of an access to the arguments; None if refused. Records the argument, or the return value."""
    if access.off % 8 or env.target is None:
        return None
    target = env.target
    proto_id = prototype_of(target)
    traces = env.program.attach == AttachType.TRACE_RAW_TP and env.program.prog_type == ProgType.TRACING
    if proto_id:
        args, ret = target.btf.prototype(proto_id)
        index = _slot(target.btf, args, ret, access.off)
    else:
        args, ret, index = [0] * _DEFAULT_ARGS, 0, access.off // 8
    count = len(args)
    if traces:
        # The first parameter of a tracepoint's prototype is the probe's own data.
        args, count = args[1:], count - 1
    if index > count:
        return None
    if index == count:
        return _return_value(env, target, ret if proto_id else None, access)
    env.accessed_args.add(index)
    if not proto_id:
        return ContextField()
    return _argument(env, target, index, args[index], access, is_return=False)


@cache
def _names(btf: Btf, proto_id: int) -> tuple[str, ...]:
    return btf.parameter_names(proto_id)


def prototype_of(target: AttachTarget) -> int:
    """Type id of the target's FUNC_PROTO: a function's, or a tracepoint's after typedef and pointer; 0: no reliable
    one.
    """
    if target.func is not None:
        return target.func.proto_id
    try:
        kind = target.btf.unmodified(target.btf_id)
        while kind.kind in (BtfKind.PTR, BtfKind.FUNC):
            kind = target.btf.unmodified(kind.type_id)
    except BtfError:
        return 0
    return kind.id if kind.kind is BtfKind.FUNC_PROTO else 0


def _slot(btf: Btf, args: "list[int] | tuple[int, ...] | object", ret: int, off: int) -> int:
    """Index of the argument at an offset in the context (``btf_ctx_arg_idx``); their count is the return value's index.
    """
    if off < 0:
        return 1 << 16
    sizes = [round_up(btf.passed(arg)[1], 8) for arg in (*args, ret)]  # type: ignore[misc]
    return next((n for n, end in enumerate(accumulate(sizes)) if off < end), len(sizes))


def _return_value(env: Env, target: AttachTarget, ret: int | None, access: ContextAccess) -> ContextField | None:
    attach = env.program.attach
    if attach in _LSM or attach in _EXITS:
        env.accesses_ret = True
        if ret is None:
            return ContextField()
    elif attach == AttachType.MODIFY_RETURN:
        if ret is None or not _is_small_int(target.btf.unmodified(ret)):
            return None
        env.accesses_ret = True
    else:
        return None
    found = _argument(env, target, -1, ret, access, is_return=True)
    if found is not None and found.kind is RegKind.SCALAR_VALUE and attach == AttachType.LSM_MAC:
        limits = retval_range(env)
        if limits is not None:
            return ContextField(number=signed32_range(*limits))
    return found


def _is_small_int(kind: Type) -> bool:
    return kind.kind is BtfKind.INT and kind.size <= 8


def _argument(
    env: Env, target: AttachTarget, index: int, type_id: int, access: ContextAccess, *, is_return: bool
) -> ContextField | None:
    btf = target.btf
    kind = btf.unmodified(type_id)
    if _is_small_int(kind) or kind.kind in _ENUMS or kind.kind in _STRUCTS:
        return ContextField()
    if kind.kind is not BtfKind.PTR or access.size != 8:
        return None
    rules = env.kernel.rules.calls
    is_iter = env.program.prog_type == ProgType.TRACING and env.program.attach == AttachType.TRACE_ITER
    listed = iterator_field(env.kernel.rules.calls, target.name, access.off) if is_iter and not is_return else None
    if listed is not None and listed[0] is RegKind.PTR_TO_BUF:
        return ContextField(*listed)
    pointed, tags = pointee(btf, kind)
    if pointed.kind not in _STRUCTS:
        plain = pointed.kind in (BtfKind.VOID, BtfKind.INT)
        return ContextField() if plain or rules.any_pointer_is_number else None
    if listed is not None:
        return ContextField(listed[0], listed[1], btf, pointed.id)
    flags = tags & (Flag.MEM_USER | Flag.MEM_PERCPU)
    if rules.trusted:
        if _trusted(env):
            flags |= Flag.PTR_TRUSTED
        if not is_return:
            null, error = _tracepoint_nulls(env, target, index)
            if error:
                return ContextField()
            if null:
                flags |= Flag.PTR_MAYBE_NULL
    if target.prog is not None:
        # A context pointer in the prototype of a traced program (btf_translate_to_vmlinux).
        known = is_context(btf, kind.type_id, target.prog.prog_type)
        struct = kernel_struct(env.kernel.btf, target.prog.prog_type) if known else 0
        return ContextField(RegKind.PTR_TO_BTF_ID, flags, env.kernel.btf, struct) if struct else None
    return ContextField(RegKind.PTR_TO_BTF_ID, flags, btf, pointed.id)


def _trusted(env: Env) -> bool:
    """``prog_args_trusted``."""
    if env.program.prog_type == ProgType.LSM:
        return env.target is not None and is_trusted_hook(env.kernel, env.target.name)
    return env.program.attach in (AttachType.TRACE_RAW_TP, AttachType.TRACE_ITER)


def _tracepoint_nulls(env: Env, target: AttachTarget, index: int) -> tuple[bool, bool]:
    """For a tracepoint's argument: True if it may be NULL, and True if it may be an error pointer."""
    if env.program.attach != AttachType.TRACE_RAW_TP or env.program.prog_type != ProgType.TRACING:
        return False, False
    name = target.name.removeprefix(TRACE_PREFIX)
    marks = _listed_nulls().get(name, {}).get(index, "")
    null = "n" in marks
    probes = target.btf.functions_named(f"__bpf_trace_{name}")
    if probes and index + 1 < len(probes[0].values):
        names = _names(target.btf, probes[0].proto_id)
        null = null or names[index + 1].endswith("__nullable")
    return null, "e" in marks


@cache
def _listed_nulls() -> dict[str, dict[int, str]]:
    """``raw_tp_null_args``: by tracepoint, the marks of its arguments."""
    found: dict[str, dict[int, str]] = {}
    text = (files("trampoline.bpf") / "data" / "tracepoint_nulls.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *marks = line.split()
            found[name] = {int(mark[:-1]): mark[-1] for mark in marks}
    return found
