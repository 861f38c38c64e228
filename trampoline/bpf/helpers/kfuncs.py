"""Kernel functions that programs may call by BTF id, with flags and permissions, from kfuncs.txt."""

from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cache

from trampoline.bpf.function_lists import marked, sections
from trampoline.bpf.helpers.rules import HelperRules
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.uapi import AttachType, ProgType

_UPROBE_SESSION = 57
_TRACING = (ProgType.TRACING, ProgType.LSM, ProgType.TRACEPOINT, ProgType.PERF_EVENT)
_RAW_TRACEPOINTS = (ProgType.RAW_TRACEPOINT, ProgType.RAW_TRACEPOINT_WRITABLE)
_SESSIONS = (
    (ProgType.KPROBE, AttachType.TRACE_KPROBE_SESSION),
    (ProgType.KPROBE, _UPROBE_SESSION),
    (ProgType.TRACING, AttachType.TRACE_FSESSION),
    (ProgType.TRACING, AttachType.TRACE_FSESSION_MULTI),
)


class Kf(IntFlag):
    """``KF_*`` of include/linux/btf.h."""

    NONE = 0
    ACQUIRE = auto()
    RELEASE = auto()
    RET_NULL = auto()
    TRUSTED_ARGS = auto()
    SLEEPABLE = auto()
    DESTRUCTIVE = auto()
    RCU = auto()
    ITER_NEW = auto()
    ITER_NEXT = auto()
    ITER_DESTROY = auto()
    RCU_PROTECTED = auto()


@dataclass(frozen=True, slots=True)
class Kfunc:
    """One function: its set, and its flags."""

    name: str
    set: str
    flags: Kf

    def has(self, flag: Kf) -> bool:
        """True if any of these flags is set."""
        return bool(self.flags & flag)


@cache
def kfuncs(version: KernelVersion) -> dict[str, Kfunc]:
    """The modelled functions of a version, by name."""
    found: dict[str, Kfunc] = {}
    for group, entries in sections("helpers/kfuncs.txt").items():
        for word, *flags in entries:
            name, span = marked(word)
            if version in span:
                value = Kf.NONE
                for flag in flags:
                    value |= Kf[flag]
                found[name] = Kfunc(name, group, value)
    return found


def may_call(rules: HelperRules, kfunc: Kfunc, prog_type: int, attach: int) -> bool:
    """True if a program of this type may call the function (``btf_kfunc_id_set_contains``)."""
    if kfunc.set == "common":
        return True
    if kfunc.set == "session":
        return (prog_type, attach) in _SESSIONS and (rules.fsession or prog_type == ProgType.KPROBE)
    if kfunc.set == "lsm":
        return prog_type == ProgType.LSM
    traces = prog_type in _TRACING or (rules.raw_tracepoints_trace and prog_type in _RAW_TRACEPOINTS)
    return traces or (kfunc.set == "generic" and prog_type == ProgType.SYSCALL)
