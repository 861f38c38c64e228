"""Rules of a kernel release for helpers and kernel functions: how many there are, and who may call them."""

from dataclasses import dataclass

from trampoline.bpf.kernel_version import NO_VERSION, KernelVersion


@dataclass(frozen=True, slots=True)
class HelperRules:
    """One release's helpers; ``version`` is what the marks of the lists are compared with."""

    count: int
    """``__BPF_FUNC_MAX_ID``: numbers from there on are unknown."""
    raw_tracepoints_trace: bool = False
    """Raw tracepoint programs call the kernel functions that tracing programs do (7.0)."""
    version: KernelVersion = NO_VERSION
    """From the release."""
    fsession: bool = False
    """Session functions are for fsession programs too. From the release."""


NO_HELPERS = HelperRules(count=0)
"""Stands in rules that no release has been given to."""
