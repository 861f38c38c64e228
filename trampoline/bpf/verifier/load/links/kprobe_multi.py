"""Checks of kprobe_multi links (kernel/trace/bpf_trace.c)."""

from errno import EINVAL, EOPNOTSUPP, ESRCH

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse

ATTACH_TYPES = (AttachType.TRACE_KPROBE_MULTI, AttachType.TRACE_KPROBE_SESSION)
"""Expected attach types of their programs."""


def attach(links: KernelLinks, loaded: VerifiedLoad, symbols: tuple[str, ...]) -> None:
    """``bpf_kprobe_multi_link_attach``. Raises VerifierError."""
    kernel, program = links.kernel, loaded.program
    if not kernel.rules.target.fprobe:
        refuse(EOPNOTSUPP, "the kernel has no fprobe")
    if program.prog_type != ProgType.KPROBE or program.attach not in ATTACH_TYPES or not symbols:
        refuse(EINVAL, "only KPROBE programs for multi links can be attached")
    if program.sleepable:
        refuse(EINVAL, "programs on kprobes must not sleep")
    for symbol in symbols:
        without_site = any(symbol in kernel.names(name) for name in ("no_site", "init_text"))
        if without_site or not kernel.btf.functions_named(symbol):
            refuse(ESRCH, f"no function {symbol} with a patch site")
