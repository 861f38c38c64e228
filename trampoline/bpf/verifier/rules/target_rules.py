"""What releases say differently about the targets of tracing programs."""

from dataclasses import dataclass

from trampoline.bpf.uapi import AttachType, ProgType

_FENTRY_KINDS = frozenset({AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN})
_MULTI_KINDS = frozenset({AttachType.TRACE_FENTRY_MULTI, AttachType.TRACE_FEXIT_MULTI, AttachType.TRACE_FSESSION_MULTI})

SYSCALL_PREFIX = "__x64_"
"""How the names of system calls' entries begin (``has_arch_syscall_prefix``)."""
SECURITY_PREFIX = "security_"


@dataclass(frozen=True, slots=True)
class TargetRules:
    """One release's ``check_attach_btf_id``. A new release is a new value here, and marks in the lists."""

    nests: bool
    """A tracing program may be the target of another, one level deep (19bfcdf9498a, 6.8); before, none may."""
    sleepable_types: frozenset[ProgType]
    """Program types that may be sleepable; TRACING and STRUCT_OPS are asked more."""
    sleepable_attach: frozenset[AttachType] | None
    """Attach types with which TRACING may be sleepable; None: any (the kernel asks only what the target is)."""
    sleepable_fault: str
    """What the log says of another type."""
    sleepable_lsm_cgroup: bool
    """LSM_CGROUP programs may be sleepable."""
    session: bool
    """TRACE_FSESSION exists."""
    multi: bool
    """The multi attach types exist."""
    syscalls: bool
    """Without error injection, entries of system calls may be slept in and their return value be modified (7.1)."""
    union_args: bool
    """Unions by value are arguments like structs are."""
    faultable_at_load: bool
    """A sleepable tp_btf program is checked against its tracepoint when it is loaded."""
    noreturn_fault: str
    """What the log says of fexit on a function that does not return, with ``{name}``."""
    deny_fault: str
    """What the log says of ``btf_id_deny``, with ``{name}``."""


TARGET_RULES = {
    "6.1": TargetRules(
        nests=False,
        sleepable_types=frozenset({ProgType.TRACING, ProgType.LSM, ProgType.KPROBE}),
        sleepable_attach=None,
        sleepable_fault="Only fentry/fexit/fmod_ret, lsm, and kprobe/uprobe programs can be sleepable",
        sleepable_lsm_cgroup=True,
        session=False,
        multi=False,
        syscalls=False,
        union_args=False,
        faultable_at_load=False,
        noreturn_fault="",
        deny_fault="",
    ),
    "6.12": TargetRules(
        nests=True,
        sleepable_types=frozenset({ProgType.TRACING, ProgType.LSM, ProgType.KPROBE, ProgType.STRUCT_OPS}),
        sleepable_attach=_FENTRY_KINDS | {AttachType.TRACE_ITER},
        sleepable_fault="Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable",
        sleepable_lsm_cgroup=True,
        session=False,
        multi=False,
        syscalls=False,
        union_args=False,
        faultable_at_load=False,
        noreturn_fault="Attaching fexit/fmod_ret to __noreturn functions is rejected.",
        deny_fault="",
    ),
    "7.2": TargetRules(
        nests=True,
        sleepable_types=frozenset(
            {
                ProgType.TRACING,
                ProgType.LSM,
                ProgType.KPROBE,
                ProgType.STRUCT_OPS,
                ProgType.RAW_TRACEPOINT,
                ProgType.TRACEPOINT,
            }
        ),
        sleepable_attach=_FENTRY_KINDS
        | _MULTI_KINDS
        | {AttachType.TRACE_ITER, AttachType.TRACE_RAW_TP, AttachType.TRACE_FSESSION},
        sleepable_fault="Program of this type cannot be sleepable",
        sleepable_lsm_cgroup=False,
        session=True,
        multi=True,
        syscalls=True,
        union_args=True,
        faultable_at_load=True,
        noreturn_fault="Attaching fexit/fsession/fmod_ret to __noreturn function '{name}' is rejected.",
        deny_fault="Attaching tracing programs to function '{name}' is rejected.",
    ),
}
