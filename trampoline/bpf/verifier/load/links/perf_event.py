"""Checks of programs on perf events of tracepoints and kprobes (kernel/events/core.c)."""

from errno import EACCES, EINVAL, ENOENT

from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.attach_requests import PerfKprobe, PerfTracepoint
from trampoline.bpf.verifier.errors import Unsupported
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links import kprobe
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse
from trampoline.bpf.verifier.target.tracepoints import arguments, event_size


def set_on_tracepoint(links: KernelLinks, loaded: VerifiedLoad, event: PerfTracepoint) -> None:
    """A program on the event of a tracepoint (``__perf_event_set_bpf_prog``). Raises VerifierError, Unsupported."""
    program = loaded.program
    is_syscall = event.system == "syscalls"
    if not is_syscall and event.name not in arguments(links.kernel.btf):
        refuse(ENOENT, f"no event {event.system}/{event.name}")
    if program.prog_type != ProgType.TRACEPOINT:
        refuse(EINVAL, "only TRACEPOINT programs are set on tracepoints")
    if program.sleepable and not is_syscall:
        refuse(EINVAL, "the tracepoint must not fault")
    read = loaded.verified.max_ctx_offset
    if not read:
        return
    size = event_size(links.kernel.btf, event.name)
    if size is None:
        raise Unsupported(f"records of event {event.system}/{event.name}")
    if read > size:
        refuse(EACCES, f"the program reads {read} bytes of a record of {size} bytes")


def set_on_kprobe(links: KernelLinks, loaded: VerifiedLoad, probe: PerfKprobe) -> None:
    """A program on the event of a kprobe (``__perf_event_set_bpf_prog``). Raises VerifierError."""
    kprobe.check(links, probe)
    if loaded.program.prog_type != ProgType.KPROBE:
        refuse(EINVAL, "only KPROBE programs are set on kprobes")
    if loaded.program.sleepable:
        refuse(EINVAL, "programs on kprobes must not sleep")
