"""Helpers available to a program: ``get_func_proto`` of each program type, from availability.txt."""

from dataclasses import dataclass
from functools import cache

from trampoline.bpf.function_lists import marked, sections
from trampoline.bpf.helpers.protos import HelperProto, helper_names, protos
from trampoline.bpf.helpers.rules import HelperRules
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.uapi import AttachType, ProgType

_KPROBE_MULTI = (AttachType.TRACE_KPROBE_MULTI, AttachType.TRACE_KPROBE_SESSION)
_UPROBE_MULTI = (48, 57)  # BPF_TRACE_UPROBE_MULTI, BPF_TRACE_UPROBE_SESSION
_TRAMPOLINE = (
    AttachType.TRACE_FENTRY,
    AttachType.TRACE_FEXIT,
    AttachType.MODIFY_RETURN,
    AttachType.TRACE_FSESSION,
    AttachType.TRACE_FENTRY_MULTI,
    AttachType.TRACE_FEXIT_MULTI,
    AttachType.TRACE_FSESSION_MULTI,
)
_SOCKET_ITERATORS = ("bpf_iter_tcp", "bpf_iter_unix", "bpf_iter_udp")


@dataclass(frozen=True, slots=True)
class Caller:
    """Properties of a program that determine its helpers."""

    rules: HelperRules
    prog_type: int
    attach: int = 0
    sleepable: bool = False
    target: str = ""
    """Name of its target function."""
    bpf: bool = True
    perfmon: bool = True
    """Capabilities of its loader."""

    @property
    def has_trampoline(self) -> bool:
        """``bpf_prog_has_trampoline``: True if a trampoline calls the program."""
        if self.prog_type == ProgType.LSM:
            return self.attach == AttachType.LSM_MAC
        return self.prog_type == ProgType.TRACING and self.attach in _TRAMPOLINE


def is_known(rules: HelperRules, number: int) -> bool:
    """True if a helper has this number."""
    return 0 < number < rules.count


def helper_for(caller: Caller, number: int) -> HelperProto | None:
    """The prototype with which a program calls helper ``number``; None if it may not."""
    if not is_known(caller.rules, number):
        return None
    symbol = _available(caller).get(helper_names()[number])
    return protos(caller.rules.version)[symbol] if symbol else None


@cache
def _available(caller: Caller) -> dict[str, str]:
    found: dict[str, str] = {}
    for section in _chain(caller):
        for helper, symbol in _section(caller.rules.version, section).items():
            found.setdefault(helper, symbol)
    return {helper: symbol for helper, symbol in found.items() if symbol != "-"}


@cache
def _section(version: KernelVersion, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for words in sections("helpers/availability.txt")[name]:
        for word in words:
            entry, span = marked(word)
            if version in span:
                helper, _, symbol = entry.partition("=")
                found[helper] = symbol or helper
    return found


def _chain(caller: Caller) -> list[str]:
    """Sections in search order; the first that contains a helper decides."""
    kind = caller.prog_type
    if kind == ProgType.KPROBE:
        own = ["kprobe sleepable"] if caller.sleepable else []
        if caller.attach in _KPROBE_MULTI:
            own.append("kprobe multi")
        elif caller.attach in _UPROBE_MULTI:
            own.append("uprobe multi")
        return [*own, "kprobe", *_tracing(caller)]
    if kind == ProgType.TRACEPOINT:
        return ["tracepoint", *_tracing(caller)]
    if kind == ProgType.PERF_EVENT:
        return ["perf_event", *_tracing(caller)]
    if kind in (ProgType.RAW_TRACEPOINT, ProgType.RAW_TRACEPOINT_WRITABLE):
        return ["raw_tracepoint", *_tracing(caller)]
    if kind == ProgType.TRACING:
        return _btf_tracing(caller)
    if kind == ProgType.LSM:
        if caller.attach == AttachType.LSM_CGROUP:
            return ["lsm cgroup", "lsm", *_btf_tracing(caller)]
        return [*(["lsm sleepable"] if caller.sleepable else []), "lsm", *_btf_tracing(caller)]
    if kind == ProgType.SYSCALL:
        return ["syscall", *_btf_tracing(caller)]
    if kind == ProgType.SOCKET_FILTER:
        return ["socket_filter", *(["socket_filter perfmon"] if caller.perfmon else []), *_base(caller)]
    return _base(caller)


def _btf_tracing(caller: Caller) -> list[str]:
    own: list[str] = []
    if caller.has_trampoline:
        own = ["trampoline"]
    elif caller.attach == AttachType.TRACE_RAW_TP:
        own = ["tp_btf"]
    elif caller.attach == AttachType.TRACE_ITER:
        own = ["iter"]
    after = ["iter sockets"] if own == ["iter"] and caller.target in _SOCKET_ITERATORS else []
    return ["btf tracing", *own, "raw_tracepoint", *_tracing(caller), *after]


def _tracing(caller: Caller) -> list[str]:
    sleepable = ["tracing sleepable"] if caller.sleepable else []
    unchecked = caller.prog_type == ProgType.LSM or caller.attach == AttachType.TRACE_ITER
    return [*sleepable, *([] if unchecked else ["recursion checked"]), "tracing", *_base(caller)]


def _base(caller: Caller) -> list[str]:
    found = ["base"]
    if caller.bpf:
        found.append("base bpf")
        if caller.perfmon:
            found.append("base perfmon")
    return found
