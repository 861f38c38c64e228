"""Target of a tracing program: a function of the kernel or of another program.

The checks of ``check_attach_btf_id`` and ``bpf_check_attach_target`` (kernel/bpf/verifier.c), in their order.
"""

from dataclasses import dataclass, replace
from errno import EINVAL, ENOENT
from typing import NoReturn

from trampoline.bpf.btf.btf import Btf, BtfKind, Func, Type, model_of
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.errors import KernelError
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.rules.target_rules import SECURITY_PREFIX, SYSCALL_PREFIX, TargetRules
from trampoline.bpf.verifier.target.extension import check_type_match

TRACE_PREFIX = "btf_trace_"
"""Prefix of the typedefs of tracepoints' prototypes."""
LSM_PREFIX = "bpf_lsm_"
ITER_PREFIX = "bpf_iter_"

_FUNCTION_KINDS = frozenset(
    {
        AttachType.MODIFY_RETURN,
        AttachType.LSM_MAC,
        AttachType.LSM_CGROUP,
        AttachType.TRACE_FENTRY,
        AttachType.TRACE_FEXIT,
    }
)
_MULTI = frozenset({AttachType.TRACE_FENTRY_MULTI, AttachType.TRACE_FEXIT_MULTI, AttachType.TRACE_FSESSION_MULTI})
_RUNS_AFTER = frozenset({AttachType.TRACE_FEXIT, AttachType.TRACE_FSESSION, AttachType.MODIFY_RETURN})


@dataclass(frozen=True, slots=True, eq=False)
class AttachTarget:
    """Result of ``bpf_check_attach_target``: the function's type in ``btf``, and the program that contains it."""

    name: str
    btf: Btf
    btf_id: int
    func: Func | None = None
    prog: BpfProgram | None = None
    model: FuncModel | None = None
    """Function model for a trampoline; None for tracepoints."""


def check_attach_btf_id(program: BpfProgram, kernel: KernelView) -> AttachTarget | None:
    """The target of a program being loaded; None if its type has none.

    Raises VerifierError if the kernel refuses (``summary`` is its log's line), Unsupported for struct_ops.
    """
    rules = kernel.rules.target
    if program.prog_type == ProgType.SYSCALL:
        if not program.sleepable:
            _refuse("Syscall programs can only be sleepable")
        return None
    if program.sleepable and not _can_be_sleepable(program, rules):
        _refuse(rules.sleepable_fault)
    if program.prog_type == ProgType.STRUCT_OPS:
        raise Unsupported("struct_ops programs")
    if program.prog_type not in (ProgType.TRACING, ProgType.LSM, ProgType.EXT):
        return None
    if program.attach in _MULTI and rules.multi:
        # Multi links get their targets when they are created.
        return None
    target = check_attach_target(program, kernel)
    if program.attach == AttachType.TRACE_RAW_TP:
        return target
    if program.attach == AttachType.TRACE_ITER:
        if not _is_iterator(target):
            _refuse("")
        return target
    if program.prog_type == ProgType.LSM:
        _check_lsm(program, target, kernel)
    elif program.prog_type == ProgType.TRACING and target.prog is None:
        _check_denied(program, target, kernel, rules)
    return target


def check_attach_target(program: BpfProgram, kernel: KernelView) -> AttachTarget:
    """``bpf_check_attach_target``: the target of a TRACING, LSM or EXT program's ``attach_btf_id``.

    Raises VerifierError.
    """
    if not program.attach_btf_id:
        _refuse("Tracing programs must provide btf_id")
    rules = kernel.rules.target
    btf = kernel.btf if program.attach_prog is None else program.attach_prog.btf
    if btf is None:
        _refuse("FENTRY/FEXIT program can only be attached to another program annotated with BTF")
    if not 0 < program.attach_btf_id < len(btf):
        _refuse(f"attach_btf_id {program.attach_btf_id} is invalid")
    found = btf.type(program.attach_btf_id)
    if program.attach_prog is not None:
        _check_target_program(program, program.attach_prog, found, rules)
    elif program.prog_type == ProgType.EXT:
        _refuse("Cannot replace kernel functions")
    if program.attach == AttachType.TRACE_RAW_TP and program.prog_type != ProgType.EXT:
        return _tracepoint(program, kernel, btf, found, rules)
    if program.attach == AttachType.TRACE_ITER and program.prog_type != ProgType.EXT:
        return _function(btf, found, rules)
    is_session = program.attach == AttachType.TRACE_FSESSION
    is_function_kind = program.attach in _FUNCTION_KINDS or (is_session and rules.session)
    if program.prog_type != ProgType.EXT and not is_function_kind:
        _refuse("")
    if found.kind is BtfKind.FUNC and program.prog_type == ProgType.EXT:
        check_type_match(program, btf, found)
    target = _function(btf, found, rules)
    if program.attach_prog is not None:
        target = replace(target, prog=program.attach_prog)
    _check_may_sleep_or_modify(program, target, kernel, rules)
    return target


def _refuse(message: str, errno: int = EINVAL) -> NoReturn:
    raise VerifierError(errno, message, log=message + "\n" if message else "")


def _can_be_sleepable(program: BpfProgram, rules: TargetRules) -> bool:
    if program.prog_type not in rules.sleepable_types:
        return False
    if program.prog_type == ProgType.TRACING and rules.sleepable_attach is not None:
        return program.attach in rules.sleepable_attach
    return program.prog_type != ProgType.LSM or program.attach != AttachType.LSM_CGROUP or rules.sleepable_lsm_cgroup


def _check_target_program(program: BpfProgram, target: BpfProgram, found: Type, rules: TargetRules) -> None:
    """Check a function of another program as the target."""
    if not any(info.type_id == found.id for info in target.funcs):
        _refuse(f"Subprog {found.name} doesn't exist")
    if program.prog_type == ProgType.EXT and found.kind is BtfKind.FUNC and not found.count:
        # Static functions' prototypes are not checked: func_info_aux[].unreliable.
        _refuse("Cannot replace static functions")
    is_tracing = program.prog_type == ProgType.TRACING
    if rules.nests and is_tracing:
        if target.prog_type == ProgType.TRACING and target.attach_prog is not None and _traces_tracing(target):
            _refuse("Cannot nest tracing program attach more than once")
    elif target.prog_type == program.prog_type:
        _refuse("Cannot recursively attach")
    extends_tracing = program.prog_type == ProgType.EXT and target.prog_type == ProgType.TRACING
    kinds = (AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.TRACE_FSESSION)
    if extends_tracing and target.attach in kinds:
        _refuse("Cannot extend fentry/fexit" + ("/fsession" if rules.session else ""))


def _traces_tracing(program: BpfProgram) -> bool:
    """``attach_tracing_prog``: True if the program's own target is a tracing program."""
    return program.attach_prog is not None and program.attach_prog.prog_type == ProgType.TRACING


def _tracepoint(program: BpfProgram, kernel: KernelView, btf: Btf, found: Type, rules: TargetRules) -> AttachTarget:
    if program.attach_prog is not None:
        _refuse("Only FENTRY/FEXIT progs are attachable to another BPF prog")
    if found.kind is not BtfKind.TYPEDEF:
        _refuse(f"attach_btf_id {found.id} is not a typedef")
    if not found.name.startswith(TRACE_PREFIX):
        _refuse(f"attach_btf_id {found.id} points to wrong type name {found.name}")
    pointer = btf.type(found.type_id)
    if pointer.kind is not BtfKind.PTR or btf.type(pointer.type_id).kind is not BtfKind.FUNC_PROTO:
        _refuse("")
    name = found.name.removeprefix(TRACE_PREFIX)
    if program.sleepable and rules.faultable and name not in kernel.names("faultable_tracepoints"):
        _refuse(f"Sleepable program cannot attach to non-faultable tracepoint {name}")
    return AttachTarget(name, btf, found.id)


def _function(btf: Btf, found: Type, rules: TargetRules) -> AttachTarget:
    """The function of a type and its model (``btf_distill_func_proto``)."""
    if found.kind is not BtfKind.FUNC:
        _refuse(f"attach_btf_id {found.id} is not a function")
    func = btf.function(found.id)
    try:
        model = model_of(func, union_args=rules.union_args)
    except KernelError as error:
        if error.errno == EINVAL:
            _refuse(error.what)
        # Too many argument slots are refused by the trampoline generator, at attach.
        model = func.model
    return AttachTarget(func.name, btf, found.id, func, None, model)


def _check_may_sleep_or_modify(
    program: BpfProgram, target: AttachTarget, kernel: KernelView, rules: TargetRules
) -> None:
    if target.prog is None and not kernel.has_address(target.name):
        _refuse(f"The address of function {target.name} cannot be found", ENOENT)
    if program.sleepable:
        if not _may_sleep(program, target, kernel, rules):
            _refuse(f"{target.name} is not sleepable")
    elif program.attach == AttachType.MODIFY_RETURN:
        if target.prog is not None:
            _refuse("can't modify return codes of BPF programs")
        if not _is_modifiable(target.name, kernel, rules):
            _refuse(f"{target.name}() is not modifiable")


def _may_sleep(program: BpfProgram, target: AttachTarget, kernel: KernelView, rules: TargetRules) -> bool:
    if target.prog is not None:
        return False
    if program.prog_type == ProgType.LSM:
        return target.name in kernel.names("lsm_sleepable")
    if program.prog_type != ProgType.TRACING:
        return False
    # The recorded kernels have no CONFIG_FUNCTION_ERROR_INJECTION, so its list is empty.
    if rules.syscalls and target.name.startswith(SYSCALL_PREFIX):
        return True
    return target.name in kernel.names("fmod_ret_sleepable")


def _is_modifiable(name: str, kernel: KernelView, rules: TargetRules) -> bool:
    """``check_attach_modify_return``, and the BTF sets checked by ``btf_kfunc_is_modify_return``."""
    prefixes = (SECURITY_PREFIX, SYSCALL_PREFIX) if rules.syscalls else (SECURITY_PREFIX,)
    return name.startswith(prefixes) or name in kernel.names("fmod_ret")


def _is_iterator(target: AttachTarget) -> bool:
    """``bpf_iter_prog_supported``: a registered target's function, recognised by name and by its first parameter."""
    first = target.func.model.args[0] if target.func and target.func.model.args else None
    return target.name.startswith(ITER_PREFIX) and first is not None and first.type == "struct bpf_iter_meta *"


def _check_lsm(program: BpfProgram, target: AttachTarget, kernel: KernelView) -> None:
    """``bpf_lsm_verify_prog`` (kernel/bpf/bpf_lsm.c)."""
    if not is_gpl_compatible(program.license):
        _refuse("LSM programs must have a GPL compatible license")
    if target.name in kernel.names("lsm_disabled"):
        _refuse(f"attach_btf_id {target.btf_id} points to disabled hook {target.name}")
    if not target.name.startswith(LSM_PREFIX) or target.name in kernel.names("lsm_not_hooks"):
        _refuse(f"attach_btf_id {target.btf_id} points to wrong type name {target.name}")


def _check_denied(program: BpfProgram, target: AttachTarget, kernel: KernelView, rules: TargetRules) -> None:
    if target.name in kernel.names("btf_id_deny"):
        _refuse(rules.deny_fault.format(name=target.name))
    if program.attach in _RUNS_AFTER and target.name in kernel.names("noreturn_deny"):
        _refuse(rules.noreturn_fault.format(name=target.name))


def is_gpl_compatible(text: str) -> bool:
    """``license_is_gpl_compatible`` (include/linux/license.h)."""
    return text in ("GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL")
