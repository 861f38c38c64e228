"""Requests to attach a loaded program."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkCreate:
    """BPF_LINK_CREATE with the program's expected attach type and its load-time target only."""


@dataclass(frozen=True, slots=True)
class RawTracepointOpen:
    """BPF_RAW_TRACEPOINT_OPEN; ``name`` None is a null pointer."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class PerfTracepoint:
    """A perf event of a tracepoint (``sched``, ``sched_switch``), and the program set on it."""

    system: str
    name: str


@dataclass(frozen=True, slots=True)
class PerfKprobe:
    """A perf event of a kprobe or kretprobe at ``symbol`` + ``offset`` bytes, and the program set on it."""

    symbol: str
    offset: int = 0
    retprobe: bool = False


@dataclass(frozen=True, slots=True)
class KprobeMulti:
    """BPF_LINK_CREATE of a kprobe_multi link on these symbols."""

    symbols: tuple[str, ...]


Request = LinkCreate | RawTracepointOpen | PerfTracepoint | PerfKprobe | KprobeMulti
