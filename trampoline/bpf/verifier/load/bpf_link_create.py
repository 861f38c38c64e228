"""Attaching of loaded programs: the kernel's checks when a link or perf event is created (kernel/bpf/syscall.c).

``link_create`` selects the kind of link; its checks are in that kind's file, ``trampoline.bpf.verifier.load.links``.
"""

from errno import EINVAL

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.attach_requests import (
    KprobeMulti,
    LinkCreate,
    PerfKprobe,
    PerfTracepoint,
    RawTracepointOpen,
    Request,
)
from trampoline.bpf.verifier.errors import Unsupported
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links import bpf_iter, kprobe_multi, perf_event, raw_tracepoint, tracing
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse


class Links(KernelLinks):
    """The links of one kernel, created by ``attach`` and removed by ``detach``."""

    __slots__ = ()

    def attach(self, loaded: VerifiedLoad, request: Request) -> None:
        """Attach a program that this kernel has loaded. Raises VerifierError with the kernel's errno, Unsupported."""
        match request:
            case LinkCreate():
                self._create_link(loaded)
            case RawTracepointOpen(name):
                raw_tracepoint.open_raw_tracepoint(self, loaded, name)
            case PerfTracepoint():
                perf_event.set_on_tracepoint(self, loaded, request)
            case PerfKprobe():
                perf_event.set_on_kprobe(self, loaded, request)
            case KprobeMulti(symbols):
                kprobe_multi.attach(self, loaded, symbols)

    def detach(self, loaded: VerifiedLoad) -> None:
        """Remove the link that ``attach`` made for a program."""
        tracing.detach(self, loaded)

    def _create_link(self, loaded: VerifiedLoad) -> None:
        program = loaded.program
        match program.prog_type:
            case ProgType.TRACING if program.attach == AttachType.TRACE_RAW_TP:
                raw_tracepoint.register(self, loaded, loaded.target.name if loaded.target else "")
            case ProgType.TRACING if program.attach == AttachType.TRACE_ITER:
                bpf_iter.attach(self, loaded)
            case ProgType.TRACING | ProgType.LSM if program.attach == AttachType.LSM_CGROUP:
                raise Unsupported("links on control groups")
            case ProgType.TRACING | ProgType.LSM | ProgType.EXT:
                tracing.attach(self, loaded)
            case ProgType.XDP | ProgType.SCHED_CLS | ProgType.NETFILTER | ProgType.SK_LOOKUP | ProgType.STRUCT_OPS:
                raise Unsupported("links of networking and struct_ops programs")
            case ProgType.KPROBE if program.attach in kprobe_multi.ATTACH_TYPES:
                kprobe_multi.attach(self, loaded, ())
            case _:
                # Attach type 0 (CGROUP_INET_INGRESS) is not an attach type of other program types.
                refuse(EINVAL, "programs of this type need a link with a target")
