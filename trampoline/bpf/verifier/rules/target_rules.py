"""Rules of a kernel release for the targets of tracing programs."""

from dataclasses import dataclass

from trampoline.bpf.uapi import AttachType, ProgType

SYSCALL_PREFIX = "__x64_"
"""Prefix of the entry functions of system calls (``has_arch_syscall_prefix``)."""
SECURITY_PREFIX = "security_"


@dataclass(frozen=True, slots=True)
class TargetRules:
    """One release's ``check_attach_btf_id``, besides the marks in the lists."""

    nests: bool
    """A tracing program may be the target of another, one level deep (19bfcdf9498a, 6.8); earlier never."""
    sleepable_types: frozenset[ProgType]
    """Program types that may be sleepable; TRACING and STRUCT_OPS have further checks."""
    sleepable_attach: frozenset[AttachType] | None
    """Attach types with which TRACING may be sleepable; None: any (the kernel checks only the target)."""
    sleepable_fault: str
    """The log's line for another type."""
    sleepable_lsm_cgroup: bool
    """LSM_CGROUP programs may be sleepable."""
    multi: bool
    """The multi attach types exist."""
    syscalls: bool
    """Without error injection, entries of system calls may sleep and their return value may be modified (7.1)."""
    faultable: bool
    """Sleepable programs need faultable tracepoints: checked at load for tp_btf, at attach for others."""
    noreturn_fault: str
    """The log's line for fexit on a function that does not return, with ``{name}``."""
    deny_fault: str
    """The log's line for ``btf_id_deny``, with ``{name}``."""
    fprobe: bool = True
    """Built with CONFIG_FPROBE."""
    session: bool = False
    """TRACE_FSESSION exists. From the release."""
    union_args: bool = False
    """Unions by value are allowed as arguments, like structs. From the release."""
