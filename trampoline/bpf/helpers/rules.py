"""Rules of a kernel release for helpers and kernel functions: how many there are, and who may call them."""

from dataclasses import dataclass

from trampoline.bpf.kernel_version import NO_VERSION, KernelVersion


@dataclass(frozen=True, slots=True)
class HelperRules:
    """One release's helpers; ``version`` is compared with the marks of the lists."""

    count: int
    """``__BPF_FUNC_MAX_ID``: this number and higher ones are unknown helpers."""
    raw_tracepoints_trace: bool = False
    """Raw tracepoint programs may call the kernel functions of tracing programs (7.0)."""
    version: KernelVersion = NO_VERSION
    """From the release."""
    fsession: bool = False
    """Session functions are also for fsession programs. From the release."""


NO_HELPERS = HelperRules(count=0)
"""Default of rules before a release completes them."""
