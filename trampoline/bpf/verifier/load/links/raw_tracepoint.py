"""Checks of links on raw tracepoints (kernel/bpf/syscall.c, kernel/trace/bpf_trace.c)."""

from errno import EFAULT, EINVAL, ENOENT

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links import tracing
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse
from trampoline.bpf.verifier.target.tracepoints import arguments

_RAW_TYPES = (ProgType.RAW_TRACEPOINT, ProgType.RAW_TRACEPOINT_WRITABLE)


def open_raw_tracepoint(links: KernelLinks, loaded: VerifiedLoad, name: str | None) -> None:
    """BPF_RAW_TRACEPOINT_OPEN (``bpf_raw_tp_link_attach``). Raises VerifierError."""
    program = loaded.program
    if program.prog_type in (ProgType.TRACING, ProgType.LSM, ProgType.EXT):
        if name is not None:
            refuse(EINVAL, "the attach point is the program's BTF id; no name is allowed")
        if program.attach == AttachType.TRACE_RAW_TP and program.prog_type == ProgType.TRACING:
            register(links, loaded, loaded.target.name if loaded.target else "")
        else:
            tracing.attach(links, loaded)
    elif program.prog_type in _RAW_TYPES:
        if name is None:
            refuse(EFAULT, "no name")
        register(links, loaded, name)
    else:
        refuse(EINVAL, "programs of this type cannot be attached to raw tracepoints")


def register(links: KernelLinks, loaded: VerifiedLoad, name: str) -> None:
    """``bpf_get_raw_tracepoint`` and ``bpf_probe_register``. Raises VerifierError."""
    count = arguments(links.kernel.btf).get(name)
    if count is None:
        refuse(ENOENT, f"no tracepoint {name!r}")
    faultable = links.kernel.names("faultable_tracepoints")
    if loaded.program.sleepable and name not in faultable and links.kernel.rules.target.faultable:
        refuse(EINVAL, f"tracepoint {name!r} must not fault")
    if loaded.verified.max_ctx_offset > 8 * count:
        refuse(EINVAL, f"the program reads {loaded.verified.max_ctx_offset} bytes of {count} arguments")
