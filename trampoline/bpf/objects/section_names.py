"""Program types by section name: type, attach type, target (``section_defs`` of libbpf)."""

from dataclasses import dataclass

from trampoline.bpf.errors import ObjectError
from trampoline.bpf.uapi import AttachType, ProgFlag, ProgType


@dataclass(frozen=True, slots=True)
class SectionKind:
    """Load attributes of a section's programs. ``target``: the part after the slash, ``prefix`` the part before.

    ``autoload`` is False for a section name that starts with a question mark.
    """

    prefix: str
    prog_type: ProgType
    attach: AttachType
    flags: ProgFlag
    target: str = ""
    autoload: bool = True


# A name that ends in + may be used alone or before a target, others only alone.
_SLEEPABLE = ProgFlag.SLEEPABLE
_NONE = ProgFlag(0)
_DEFINITIONS: tuple[tuple[str, ProgType, AttachType, ProgFlag], ...] = (
    ("socket", ProgType.SOCKET_FILTER, AttachType.NONE, _NONE),
    *(
        (name, ProgType.KPROBE, attach, flags)
        for name, attach, flags in (
            ("kprobe+", AttachType.NONE, _NONE),
            ("kretprobe+", AttachType.NONE, _NONE),
            ("ksyscall+", AttachType.NONE, _NONE),
            ("kretsyscall+", AttachType.NONE, _NONE),
            ("kprobe.multi+", AttachType.TRACE_KPROBE_MULTI, _NONE),
            ("kretprobe.multi+", AttachType.TRACE_KPROBE_MULTI, _NONE),
            ("kprobe.session+", AttachType.TRACE_KPROBE_SESSION, _NONE),
            ("uprobe+", AttachType.NONE, _NONE),
            ("uprobe.s+", AttachType.NONE, _SLEEPABLE),
            ("uretprobe+", AttachType.NONE, _NONE),
            ("uretprobe.s+", AttachType.NONE, _SLEEPABLE),
            ("uprobe.multi+", AttachType.TRACE_UPROBE_MULTI, _NONE),
            ("uprobe.multi.s+", AttachType.TRACE_UPROBE_MULTI, _SLEEPABLE),
            ("uretprobe.multi+", AttachType.TRACE_UPROBE_MULTI, _NONE),
            ("uretprobe.multi.s+", AttachType.TRACE_UPROBE_MULTI, _SLEEPABLE),
            ("uprobe.session+", AttachType.TRACE_UPROBE_SESSION, _NONE),
            ("uprobe.session.s+", AttachType.TRACE_UPROBE_SESSION, _SLEEPABLE),
            ("usdt+", AttachType.NONE, _NONE),
            ("usdt.s+", AttachType.NONE, _SLEEPABLE),
        )
    ),
    ("tracepoint+", ProgType.TRACEPOINT, AttachType.NONE, _NONE),
    ("tp+", ProgType.TRACEPOINT, AttachType.NONE, _NONE),
    ("raw_tracepoint+", ProgType.RAW_TRACEPOINT, AttachType.NONE, _NONE),
    ("raw_tp+", ProgType.RAW_TRACEPOINT, AttachType.NONE, _NONE),
    ("raw_tracepoint.w+", ProgType.RAW_TRACEPOINT_WRITABLE, AttachType.NONE, _NONE),
    ("raw_tp.w+", ProgType.RAW_TRACEPOINT_WRITABLE, AttachType.NONE, _NONE),
    ("tp_btf+", ProgType.TRACING, AttachType.TRACE_RAW_TP, _NONE),
    *(
        (f"{name}{suffix}+", ProgType.TRACING, attach, flags)
        for name, attach in (
            ("fentry", AttachType.TRACE_FENTRY),
            ("fexit", AttachType.TRACE_FEXIT),
            ("fmod_ret", AttachType.MODIFY_RETURN),
            ("fsession", AttachType.TRACE_FSESSION),
            ("fentry.multi", AttachType.TRACE_FENTRY_MULTI),
            ("fexit.multi", AttachType.TRACE_FEXIT_MULTI),
            ("fmod_ret.multi", AttachType.MODIFY_RETURN_MULTI),
            ("fsession.multi", AttachType.TRACE_FSESSION_MULTI),
            ("iter", AttachType.TRACE_ITER),
        )
        for suffix, flags in (("", _NONE), (".s", _SLEEPABLE))
    ),
    ("freplace+", ProgType.EXT, AttachType.NONE, _NONE),
    ("lsm+", ProgType.LSM, AttachType.LSM_MAC, _NONE),
    ("lsm.s+", ProgType.LSM, AttachType.LSM_MAC, _SLEEPABLE),
    ("lsm_cgroup+", ProgType.LSM, AttachType.LSM_CGROUP, _NONE),
    ("syscall", ProgType.SYSCALL, AttachType.NONE, _SLEEPABLE),
    ("perf_event", ProgType.PERF_EVENT, AttachType.NONE, _NONE),
    ("xdp", ProgType.XDP, AttachType.NONE, _NONE),
    ("tc", ProgType.SCHED_CLS, AttachType.NONE, _NONE),
    ("classifier", ProgType.SCHED_CLS, AttachType.NONE, _NONE),
    ("action", ProgType.SCHED_ACT, AttachType.NONE, _NONE),
)
_KINDS = {
    name.removesuffix("+"): (SectionKind(name.removesuffix("+"), prog_type, attach, flags), name.endswith("+"))
    for name, prog_type, attach, flags in _DEFINITIONS
}

_TARGETS_OF_BTF = {
    AttachType.TRACE_RAW_TP: "btf_trace_",
    AttachType.LSM_MAC: "bpf_lsm_",
    AttachType.LSM_CGROUP: "bpf_lsm_",
    AttachType.TRACE_ITER: "bpf_iter_",
    AttachType.TRACE_FENTRY: "",
    AttachType.TRACE_FEXIT: "",
    AttachType.MODIFY_RETURN: "",
    AttachType.TRACE_FSESSION: "",
}


def section_kind(section: str) -> SectionKind:
    """Load attributes for a section name. Raises ObjectError, which names the section, if the name is unknown."""
    prefix, slash, target = section.removeprefix("?").partition("/")
    kind, takes_target = _KINDS.get(prefix, (None, False))
    if kind is None or (slash and not takes_target):
        raise ObjectError("unknown program section name", section=section)
    autoload = not section.startswith("?")
    return SectionKind(kind.prefix, kind.prog_type, kind.attach, kind.flags, target, autoload)


def target_prefix(attach: AttachType | int) -> str | None:
    """Prefix of a target's name in the kernel's BTF; None if programs of this type have no target in BTF."""
    return _TARGETS_OF_BTF.get(AttachType(attach)) if attach in _TARGETS_OF_BTF else None
