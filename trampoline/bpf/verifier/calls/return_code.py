"""Allowed return values of programs and callbacks."""

from errno import EACCES, EINVAL

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.access.bpf_lsm import returns_nothing, retval_range
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.scalar import S64_MAX, S64_MIN
from trampoline.bpf.verifier.values.tnum import UNKNOWN, contains, tnum_range

_ENOTSUPP = 524
_UPROBE_SESSION = 57
_ZERO = (
    AttachType.TRACE_FENTRY,
    AttachType.TRACE_FEXIT,
    AttachType.TRACE_FSESSION,
    AttachType.TRACE_FENTRY_MULTI,
    AttachType.TRACE_FEXIT_MULTI,
    AttachType.TRACE_FSESSION_MULTI,
)


def check_return_code(env: Env, regno: int = 0, entity: str = "program exit") -> None:
    """``check_return_code``: register ``regno`` at the exit of the main function, or the argument of bpf_throw (1).

    The register must be initialised, and not a pointer unless pointers may leak.
    """
    # The function that is verified on its own decides, even in a callee.
    frame = env.state.frames[0]
    in_subprog = frame.subprog != 0
    if not in_subprog or frame.in_exception_callback:
        program = env.program
        if program.prog_type == ProgType.LSM and program.attach != AttachType.LSM_CGROUP and returns_nothing(env):
            return
    reg = env.read(regno)
    if reg.kind is not RegKind.SCALAR_VALUE and not env.capabilities.ptr_leaks:
        env.refuse(EACCES, f"R{regno} leaks addr as return value")
    name = env.type_name(reg)
    if frame.in_async_callback:
        where = "async callback return" if env.kernel.rules.calls.return_ranges else "async callback"
        _enforce(env, reg, regno, where, (0, 0))
        return
    if in_subprog and not frame.in_exception_callback:
        if not reg.is_scalar:
            env.refuse(EINVAL, f"At subprogram exit the register R{regno} is not a scalar value ({name})")
        return
    allowed = program_range(env)
    if allowed is not None:
        narrow = env.program.prog_type == ProgType.LSM and env.program.attach != AttachType.LSM_CGROUP
        _enforce(env, reg, regno, entity, allowed, narrow=narrow)


def program_range(env: Env) -> tuple[int, int] | None:
    """Allowed return values of the program, by its type; None: any. Refuses unknown attach types."""
    kind, attach = env.program.prog_type, env.program.attach
    if kind == ProgType.TRACING:
        if attach in _ZERO:
            return 0, 0
        if attach in (AttachType.TRACE_RAW_TP, AttachType.MODIFY_RETURN):
            return None
        if attach == AttachType.TRACE_ITER:
            return 0, 1
        env.refuse(_ENOTSUPP, "")
    if kind == ProgType.KPROBE:
        return (0, 1) if attach in (AttachType.TRACE_KPROBE_SESSION, _UPROBE_SESSION) else None
    if kind == ProgType.RAW_TRACEPOINT:
        return (0, 0) if env.program.attach_btf_id else None
    if kind == ProgType.LSM:
        if attach != AttachType.LSM_CGROUP:
            return retval_range(env)
        return (1, 1) if returns_nothing(env) else (0, 1)
    return None


def _enforce(env: Env, reg: Reg, regno: int, entity: str, allowed: tuple[int, int], *, narrow: bool = False) -> None:
    """Refuse a register that may be outside ``allowed``; ``narrow``: compared as an int."""
    low, high = allowed
    if not reg.is_scalar:
        name = env.type_name(reg)
        env.refuse(EINVAL, f"At {entity} the register R{regno} is not a known value ({name})")
    number = reg.var
    said = f"At {entity} the register R{regno} has"
    if not env.kernel.rules.calls.return_ranges:
        bits = tnum_range(low, high)
        if not contains(bits, number.bits):
            what = "unknown scalar value" if number.bits == UNKNOWN else f"value {number.bits}"
            env.refuse(EINVAL, f"{said} {what} should have been in {bits}")
        return
    smallest, largest = (number.s32_min, number.s32_max) if narrow else (number.smin, number.smax)
    if low <= smallest and largest <= high:
        return
    known = [f"smin={number.smin}"] * (number.smin > S64_MIN) + [f"smax={number.smax}"] * (number.smax < S64_MAX)
    env.refuse(EINVAL, f"{said} {' '.join(known) or 'unknown scalar value'} should have been in [{low}, {high}]")
