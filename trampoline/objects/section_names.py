"""What a program section's name says: type, attach type, target (``section_defs`` of libbpf)."""

from dataclasses import dataclass

from trampoline.bpf.uapi import Attach, ProgFlag, ProgType
from trampoline.errors import ObjectError


@dataclass(frozen=True, slots=True)
class SectionKind:
    """What programs of a section are loaded as. ``target``: what stands behind its slash, ``prefix`` what before.

    ``autoload`` is False for a section that begins with a question mark.
    """

    prefix: str
    prog_type: ProgType
    attach: Attach
    flags: ProgFlag
    target: str = ""
    autoload: bool = True


# A name that ends in + may stand alone or before a target, others stand alone.
_SLEEPABLE = ProgFlag.SLEEPABLE
_NONE = ProgFlag(0)
_DEFINITIONS: tuple[tuple[str, ProgType, Attach, ProgFlag], ...] = (
    ("socket", ProgType.SOCKET_FILTER, Attach.NONE, _NONE),
    *(
        (name, ProgType.KPROBE, attach, flags)
        for name, attach, flags in (
            ("kprobe+", Attach.NONE, _NONE),
            ("kretprobe+", Attach.NONE, _NONE),
            ("ksyscall+", Attach.NONE, _NONE),
            ("kretsyscall+", Attach.NONE, _NONE),
            ("kprobe.multi+", Attach.TRACE_KPROBE_MULTI, _NONE),
            ("kretprobe.multi+", Attach.TRACE_KPROBE_MULTI, _NONE),
            ("kprobe.session+", Attach.TRACE_KPROBE_SESSION, _NONE),
            ("uprobe+", Attach.NONE, _NONE),
            ("uprobe.s+", Attach.NONE, _SLEEPABLE),
            ("uretprobe+", Attach.NONE, _NONE),
            ("uretprobe.s+", Attach.NONE, _SLEEPABLE),
            ("uprobe.multi+", Attach.TRACE_UPROBE_MULTI, _NONE),
            ("uprobe.multi.s+", Attach.TRACE_UPROBE_MULTI, _SLEEPABLE),
            ("uretprobe.multi+", Attach.TRACE_UPROBE_MULTI, _NONE),
            ("uretprobe.multi.s+", Attach.TRACE_UPROBE_MULTI, _SLEEPABLE),
            ("uprobe.session+", Attach.TRACE_UPROBE_SESSION, _NONE),
            ("uprobe.session.s+", Attach.TRACE_UPROBE_SESSION, _SLEEPABLE),
            ("usdt+", Attach.NONE, _NONE),
            ("usdt.s+", Attach.NONE, _SLEEPABLE),
        )
    ),
    ("tracepoint+", ProgType.TRACEPOINT, Attach.NONE, _NONE),
    ("tp+", ProgType.TRACEPOINT, Attach.NONE, _NONE),
    ("raw_tracepoint+", ProgType.RAW_TRACEPOINT, Attach.NONE, _NONE),
    ("raw_tp+", ProgType.RAW_TRACEPOINT, Attach.NONE, _NONE),
    ("raw_tracepoint.w+", ProgType.RAW_TRACEPOINT_WRITABLE, Attach.NONE, _NONE),
    ("raw_tp.w+", ProgType.RAW_TRACEPOINT_WRITABLE, Attach.NONE, _NONE),
    ("tp_btf+", ProgType.TRACING, Attach.TRACE_RAW_TP, _NONE),
    *(
        (f"{name}{suffix}+", ProgType.TRACING, attach, flags)
        for name, attach in (
            ("fentry", Attach.TRACE_FENTRY),
            ("fexit", Attach.TRACE_FEXIT),
            ("fmod_ret", Attach.MODIFY_RETURN),
            ("fsession", Attach.TRACE_FSESSION),
            ("fentry.multi", Attach.TRACE_FENTRY_MULTI),
            ("fexit.multi", Attach.TRACE_FEXIT_MULTI),
            ("fmod_ret.multi", Attach.MODIFY_RETURN_MULTI),
            ("fsession.multi", Attach.TRACE_FSESSION_MULTI),
            ("iter", Attach.TRACE_ITER),
        )
        for suffix, flags in (("", _NONE), (".s", _SLEEPABLE))
    ),
    ("freplace+", ProgType.EXT, Attach.NONE, _NONE),
    ("lsm+", ProgType.LSM, Attach.LSM_MAC, _NONE),
    ("lsm.s+", ProgType.LSM, Attach.LSM_MAC, _SLEEPABLE),
    ("lsm_cgroup+", ProgType.LSM, Attach.LSM_CGROUP, _NONE),
    ("syscall", ProgType.SYSCALL, Attach.NONE, _SLEEPABLE),
    ("perf_event", ProgType.PERF_EVENT, Attach.NONE, _NONE),
    ("xdp", ProgType.XDP, Attach.NONE, _NONE),
    ("tc", ProgType.SCHED_CLS, Attach.NONE, _NONE),
    ("classifier", ProgType.SCHED_CLS, Attach.NONE, _NONE),
    ("action", ProgType.SCHED_ACT, Attach.NONE, _NONE),
)
_KINDS = {
    name.removesuffix("+"): (SectionKind(name.removesuffix("+"), prog_type, attach, flags), name.endswith("+"))
    for name, prog_type, attach, flags in _DEFINITIONS
}

_TARGETS_OF_BTF = {
    Attach.TRACE_RAW_TP: "btf_trace_",
    Attach.LSM_MAC: "bpf_lsm_",
    Attach.LSM_CGROUP: "bpf_lsm_",
    Attach.TRACE_ITER: "bpf_iter_",
    Attach.TRACE_FENTRY: "",
    Attach.TRACE_FEXIT: "",
    Attach.MODIFY_RETURN: "",
    Attach.TRACE_FSESSION: "",
}


def section_kind(section: str) -> SectionKind:
    """What programs of a section of this name are. Raises ObjectError, which names it, for one that nobody knows."""
    prefix, slash, target = section.removeprefix("?").partition("/")
    kind, takes_target = _KINDS.get(prefix, (None, False))
    if kind is None or (slash and not takes_target):
        raise ObjectError("no kind of program has a section of this name", section=section)
    autoload = not section.startswith("?")
    return SectionKind(kind.prefix, kind.prog_type, kind.attach, kind.flags, target, autoload)


def target_prefix(attach: Attach | int) -> str | None:
    """What stands before a target's name in the kernel's BTF; None where a program is loaded without a target in it."""
    return _TARGETS_OF_BTF.get(Attach(attach)) if attach in _TARGETS_OF_BTF else None
