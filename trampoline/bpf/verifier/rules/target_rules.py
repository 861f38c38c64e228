"""Rules of a kernel release for the targets of tracing programs."""

from dataclasses import dataclass

from trampoline.bpf.uapi import AttachType, ProgType

SYSCALL_PREFIX = "__x64_"
"""How the names of system calls' entries begin (``has_arch_syscall_prefix``)."""
SECURITY_PREFIX = "security_"


@dataclass(frozen=True, slots=True)
class TargetRules:
    """One release's ``check_attach_btf_id``, beside the marks in the lists."""

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
    multi: bool
    """The multi attach types exist."""
    syscalls: bool
    """Without error injection, entries of system calls may be slept in and their return value be modified (7.1)."""
    faultable: bool
    """Sleepable programs are for faultable tracepoints: tp_btf is checked when it is loaded, others when attached."""
    noreturn_fault: str
    """What the log says of fexit on a function that does not return, with ``{name}``."""
    deny_fault: str
    """What the log says of ``btf_id_deny``, with ``{name}``."""
    fprobe: bool = True
    """Built with CONFIG_FPROBE."""
    session: bool = False
    """TRACE_FSESSION exists. From the release."""
    union_args: bool = False
    """Unions by value are arguments like structs are. From the release."""
